"""The calls of an answer that the server carries out itself."""
