"""The village, and the stories and conversations that are told of it."""
