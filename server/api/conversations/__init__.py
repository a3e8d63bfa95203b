"""OpenAI's conversations: a session and the messages of its branch, in their words."""
