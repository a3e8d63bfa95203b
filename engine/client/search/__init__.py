"""Answers that are searched for, with many requests each."""
