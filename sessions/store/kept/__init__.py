"""What doors keep beside the messages."""
