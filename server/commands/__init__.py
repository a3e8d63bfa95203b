"""What a client can ask for, whichever door it comes through."""
