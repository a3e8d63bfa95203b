"""Weights that lie in GGUF files."""
