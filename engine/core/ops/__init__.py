"""Our own operations, and their references in torch."""
