"""Adapters: read, checked, kept in memory, and added to a model's products."""
