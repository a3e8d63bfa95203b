"""What doors ask beyond a frame: whole messages, words to keep, every entry as it is stored."""
