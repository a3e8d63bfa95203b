"""MCP itself: one server each, as a program or at an address. Only the tool process is here."""
