"""Models of transformers' modules: made, checked, tried, and with layers of our own."""
