"""The engines that are compared: how each is made ready, and its server."""
