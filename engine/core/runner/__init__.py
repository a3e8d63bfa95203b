"""Weights, cache, and one step on the device."""
