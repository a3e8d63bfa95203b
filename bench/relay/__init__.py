"""What the server adds to a step: `python -m bench.relay`."""
