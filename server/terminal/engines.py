"""`parley engines`: the engines of each model, and how they are, in the terminal."""

import json
from typing import Any

from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient
from server.terminal.text import output_console, printable

COLOURS = {"ready": "green", "connecting": "yellow", "preparing": "yellow"}  # red: anything else


def list_engines(client: AdminClient, as_json: bool) -> None:
    """As the worker that is asked has them."""
    engines = client.get("/engines")["engines"]
    if as_json:
        print(json.dumps(engines))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("name", "model", "kind", "", "running", "waiting", "free blocks", ""):
        table.add_column(heading, overflow="fold")
    for engine in engines:
        free, blocks = engine.get("kv_blocks_free"), engine.get("kv_blocks")
        table.add_row(
            Text(printable(engine["name"])),
            Text(printable(engine["model"])),
            Text(engine["kind"]),
            _state(engine),
            Text(str(engine.get("running", ""))),
            Text(str(engine.get("waiting", ""))),
            Text(f"{free} of {blocks}" if blocks else ""),
            Text(printable(engine.get("problem") or engine.get("url") or ""), "dim"),
        )
    output_console().print(table)


def _state(engine: dict[str, Any]) -> Text:
    if engine["draining"]:
        return Text(f"drains, {engine['state']}", "yellow")
    return Text(engine["state"], COLOURS.get(engine["state"], "red"))
