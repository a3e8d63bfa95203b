"""Answers that nothing is stored of: for clients that keep their conversations themselves."""
