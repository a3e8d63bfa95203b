"""Messages that a client brings to a session without asking for an answer, or takes out of it."""
