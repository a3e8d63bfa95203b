"""Adapters, as a client knows them."""
