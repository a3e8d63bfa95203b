"""What a worker, a socket, a stream and a session take, and how many of what that makes."""
