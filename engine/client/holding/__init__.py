"""What an answer is held to besides its form: a call of a tool, few thoughts."""
