"""What a client of `chat.v1` must know and do; no terminal and no network in it."""
