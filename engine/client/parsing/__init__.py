"""What an answer consists of: text, what the model thinks before it, calls of tools."""
