"""An MCP server with two tools, which `parley serve` can run: see docs/tools.md.

python examples/tool_server.py

It speaks on stdin and stdout, so nothing is seen when it is started by hand; Ctrl-C ends it. The
package comes with Parley's extra: pip install 'parley[tools]'.
"""

from datetime import UTC, datetime

from mcp.server.mcpserver import MCPServer

server = MCPServer("clock")


@server.tool()
def now() -> str:
    """The date and the time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@server.tool()
def days_between(first: str, second: str) -> int:
    """How many days lie between two dates, each written as 2026-11-26."""
    return abs((datetime.fromisoformat(second) - datetime.fromisoformat(first)).days)


if __name__ == "__main__":
    server.run()
