"""Chat templates, which are code of others: they run in a process of their own."""
