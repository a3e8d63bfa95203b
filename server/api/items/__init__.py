"""OpenAI's items ↔ stored messages, both ways; no I/O."""
