"""The client half of the engine: the API, its arguments, the core as a child process. No torch."""
