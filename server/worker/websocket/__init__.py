"""What `WebSocketProtocol` is made of: frames, pings, and what waits."""
