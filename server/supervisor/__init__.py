"""`parley serve`: starts Redis, the core and the workers, and starts again what dies."""
