"""Open requests, and the socket to the core."""
