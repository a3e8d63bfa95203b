"""`parley sessions`: who is being answered, and how the server is."""
