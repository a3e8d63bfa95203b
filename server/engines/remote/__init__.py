"""Engines that others have written, at an address: they take token ids, and give token ids back.

Such an engine is our own client half (`AsyncLLM`) over another link than the socket of a core
(`link.py`). Each kind has one module, its dialect: what it calls what we ask (`dialect.py`).
"""
