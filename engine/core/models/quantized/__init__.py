"""Weights that others have quantized, from codes to numbers or to floats."""
