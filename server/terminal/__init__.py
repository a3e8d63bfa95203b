"""What the command line draws: chat, sessions, users."""
