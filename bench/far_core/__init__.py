"""What a core on another machine costs beside one on this."""
