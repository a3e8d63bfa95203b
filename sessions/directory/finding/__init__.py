"""What operators look for, found among all users and sessions."""
