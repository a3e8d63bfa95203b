"""The doors: websocket, HTTP, login links, admins."""
