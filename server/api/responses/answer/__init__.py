"""One answer in the words of OpenAI's Responses: its events, and the object; no I/O."""
