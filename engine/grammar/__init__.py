"""What an answer may be asked to look like; the core holds it to that."""
