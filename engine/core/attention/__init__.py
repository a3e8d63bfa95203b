"""Attention over the paged cache, and which library computes it."""
