"""Names and shapes of what is kept. No I/O."""
