"""An answer as one object, to await, to iterate over or to wait for."""
