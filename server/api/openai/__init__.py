"""A door for OpenAI's clients: their routes, in front of what every other door uses."""
