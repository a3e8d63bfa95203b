"""What an embedding costs beside the reading of a prompt."""
