"""`chat.v1`: frames both ways, errors, close codes. No I/O."""
