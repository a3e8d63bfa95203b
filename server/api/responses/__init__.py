"""OpenAI's Responses: answers of sessions, as its clients ask for them and read them."""
