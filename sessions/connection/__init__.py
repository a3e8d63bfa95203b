"""Redis: found, trusted, called, listened to."""
