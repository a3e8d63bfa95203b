"""`parley adapters`: which LoRA adapters there are and which are loaded, in the terminal."""

import json

from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient
from server.terminal.text import output_console, printable

HASH_DIGITS = 12


def list_adapters(client: AdminClient, as_json: bool) -> None:
    """By name."""
    adapters = client.get("/adapters")["adapters"]
    if as_json:
        print(json.dumps(adapters))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("name", "", "content", ""):
        table.add_column(heading, overflow="fold")
    for adapter in adapters:
        state = Text("loaded", "green") if adapter["loaded"] else Text("not loaded", "dim")
        content = Text(adapter.get("content_hash", "")[:HASH_DIGITS])
        problem = Text(printable(adapter.get("problem", "")), "red")
        table.add_row(Text(printable(adapter["name"])), state, content, problem)
    output_console().print(table)
