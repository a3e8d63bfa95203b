"""An answer while this worker produces it."""
