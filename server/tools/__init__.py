"""Tools that the server runs: MCP servers of the operator's, in a process of their own."""
