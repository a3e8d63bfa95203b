"""OpenAI's Responses over a websocket: several answers at a time, in lanes."""
