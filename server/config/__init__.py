"""What an operator can set, and what is passed on to each process."""
