"""Commands on whom a server serves: users, groups, notices; audit, settings."""
