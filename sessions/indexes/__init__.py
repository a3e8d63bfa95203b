"""What may be stale: the lists that sessions are found by."""
