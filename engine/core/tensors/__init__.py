"""Tensors that every step fills or reads."""
