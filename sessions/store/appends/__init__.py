"""What is new of the answers of a worker, for their logs: one call for all, by a tick."""
