"""What a first visit of the chat page costs a browser."""
