"""What users of chat servers feel: `python -m bench.rivals`."""
