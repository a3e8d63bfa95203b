"""`parley chat`: a session in the terminal, as good as the page."""
