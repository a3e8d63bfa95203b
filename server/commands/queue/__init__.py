"""What waits in a session to be asked: kept, changed, and begun when its turn comes."""
