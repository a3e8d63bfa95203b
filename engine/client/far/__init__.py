"""A client's way to a core on another machine."""
