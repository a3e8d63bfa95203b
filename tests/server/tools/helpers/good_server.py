"""A server that behaves, made with the package: over stdio, or at `--http PORT`."""

import os
import sys
import threading
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("good")
FOLDER = Path(os.environ.get("FOLDER", "."))
calls: Counter[str] = Counter()


def write(name: str, text: str) -> None:
    """Into a named pipe, once somebody reads it; other calls do not wait for that."""

    def write_line() -> None:
        with (FOLDER / name).open("w") as file:
            file.write(text + "\n")

    threading.Thread(target=write_line, daemon=True).start()


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it does not work")


@server.tool()
def picture() -> list[str | Image]:
    """A text and a picture."""
    return ["a text", Image(data=b"\x89PNG", format="png")]


@server.tool()
async def wait(name: str) -> str:
    """Say that this has begun, then wait to be cancelled, and say that."""
    write(f"{name}-began", str(os.getpid()))
    try:
        await anyio.sleep_forever()
    finally:
        write(f"{name}-cancelled", "yes")
    return ""


@server.tool()
async def count(name: str) -> str:
    """Count this call, say so, and wait for a word."""
    calls[name] += 1
    write(f"{name}-began", str(calls[name]))
    word = await anyio.to_thread.run_sync((FOLDER / f"{name}-go").read_text)
    return f"call {calls[name]}: {word.strip()}"


@server.tool()
def die() -> str:
    """End in the middle of the call."""
    os._exit(3)


@server.tool()
def environment() -> str:
    """The names of the variables."""
    return " ".join(sorted(os.environ))


@server.tool()
async def grow(context: Context) -> str:
    """Have one more tool, and say so."""
    server.add_tool(fail, name="grown")
    await context.session.send_tool_list_changed()
    return "grown"


if __name__ == "__main__":
    if "--http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    else:
        server.run()
