"""`PATIENCE`: how long a test waits for what must come."""

# Seconds. Nothing waits for so long when all is well. It is this much because the processors of a
# shared machine can stand still for seconds at a time, and a server starts through many of them.
PATIENCE = 180.0
