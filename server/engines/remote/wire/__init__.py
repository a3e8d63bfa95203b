"""One request over one connection, and what can go wrong with it."""
