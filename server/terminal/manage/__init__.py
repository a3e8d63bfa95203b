"""Commands on whom a server serves and what it tells them: users, for admins."""
