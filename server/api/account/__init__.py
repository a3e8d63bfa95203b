"""What a user has beside sessions, over HTTP: credentials of their own, presets."""
