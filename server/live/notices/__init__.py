"""What an admin has to say to all users."""
