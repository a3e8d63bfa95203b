"""What answers take of their user's and their group's quotas, and give back."""
