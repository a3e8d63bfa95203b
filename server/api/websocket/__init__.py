"""The websocket door."""
