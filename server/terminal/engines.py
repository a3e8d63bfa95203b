"""`parley engines`: the engines of each model, and how they are, in the terminal."""

import json
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient
from server.terminal.text import output_console, printable

# Red: anything else.
COLOURS = {"ready": "green", "connecting": "yellow", "preparing": "yellow", "not_loaded": "dim"}
NUMBERS = ("share", "running", "waiting", "KV used")
# What an engine waits for that says nothing of it itself.
WAITS = {
    "connecting": "its first reply",
    "preparing": "its files",
    "stalled": "a sign of life",
    "dead": "its next start",
    "paused": "the end of a pause: it has failed too often",
}


def list_engines(client: AdminClient, as_json: bool) -> None:
    """As the worker that is asked has them."""
    engines = client.get("/engines")["engines"]
    if as_json:
        print(json.dumps(engines))
    elif engines:
        output_console().print(engine_table(engines))
    else:
        print("Each model has one engine; PARLEY_ENGINES names several.")


def engine_table(engines: Sequence[dict[str, Any]]) -> Table:
    """A row each. `share` is how much of what is new it gets at present."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("name", "model", "kind", "state", *NUMBERS, "waits for", "address"):
        is_number = heading in NUMBERS
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for engine in engines:
        table.add_row(
            Text(printable(engine["name"])),
            Text(printable(engine["model"])),
            Text(printable(engine["kind"])),
            _state(engine),
            Text(_share(engine, engines)),
            Text(str(engine.get("running", ""))),
            Text(str(engine.get("waiting", ""))),
            Text(_kv_used(engine)),
            Text(printable(_waits_for(engine))),
            Text(printable(engine.get("url", "")), "dim"),
        )
    return table


def _state(engine: dict[str, Any]) -> Text:
    state = engine["state"].replace("_", " ")
    if engine["draining"]:
        return Text(f"drains, {state}", "yellow")
    return Text(state, COLOURS.get(engine["state"], "red"))


def _takes_new(engine: dict[str, Any]) -> bool:
    return engine["state"] == "ready" and not engine["draining"]


def _share(engine: dict[str, Any], engines: Sequence[dict[str, Any]]) -> str:
    if not _takes_new(engine):
        return ""
    beside = [each for each in engines if each["model"] == engine["model"] and _takes_new(each)]
    return f"{engine['weight'] / sum(each['weight'] for each in beside):.0%}"


def _kv_used(engine: dict[str, Any]) -> str:
    """Empty where it does not say how much there is."""
    blocks, free = engine.get("kv_blocks"), engine.get("kv_blocks_free", 0)
    return f"{1 - free / blocks:.0%}" if blocks else ""


def _waits_for(engine: dict[str, Any]) -> str:
    state, problem = engine["state"], engine.get("problem")
    if state == "not_loaded":
        return f"somebody who asks {engine['model']}"
    if state == "ready" and engine["draining"]:
        number = engine["answers"]
        if not number:
            return "nothing: it may go"
        return f"the end of {number} answer{'s' if number > 1 else ''}"
    waits = WAITS.get(state, "")
    return f"{waits}: {problem}" if waits and problem else problem or waits
