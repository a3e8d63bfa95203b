"""A core on another machine: what both halves know of keys, sockets and calls."""
