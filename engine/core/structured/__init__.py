"""Answers that keep to a grammar: it is compiled, and its masks are made, in other processes."""
