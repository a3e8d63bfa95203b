"""`parley engines`: the engines of each model, and how they are."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from server.terminal.admin_client import AdminClient, quoted
from server.terminal.commands import Reason, Result, admin_command
from server.terminal.tables import Cell, Table

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
Model = Annotated[str | None, typer.Option(help="Whose, if several models have one of this name.")]

app = typer.Typer(
    name="engines", help="List, drain, restart, add and remove engines.", no_args_is_help=True
)


@admin_command(app, "list")
def list_engines(client: AdminClient) -> Result:
    """List the engines of this host, where a model has several."""
    engines = client.get("/engines")["engines"]
    if not engines:
        return Result(engines, "Each model has one engine; PARLEY_ENGINES names several.")
    return Result(engines, engine_table(engines))


@admin_command(app, "drain")
def drain_engine(
    client: AdminClient,
    name: str,
    move: Annotated[bool, typer.Option("--move", help="Its answers go on at others.")] = False,
    model: Model = None,
) -> Result:
    """Let an engine take no new answers."""
    drains = client.post(f"/engines/{quoted(name)}/drain", move=move, model=model)
    return Result(drains, f"{name} takes no new answers")


@admin_command(app, "resume")
def resume_engine(client: AdminClient, name: str, model: Model = None) -> Result:
    """Let an engine take new answers again."""
    resumes = client.post(f"/engines/{quoted(name)}/resume", model=model)
    return Result(resumes, f"{name} takes new answers")


@admin_command(app, "restart")
def restart_engine(
    client: AdminClient, name: str, model: Model = None, reason: Reason = ""
) -> Result:
    """Start an engine of this host again; its answers go on."""
    restarts = client.post(f"/engines/{quoted(name)}/restart", model=model, reason=reason)
    return Result(restarts, f"{name} restarts")


@admin_command(app, "add")
def add_engine(client: AdminClient, engine: str) -> Result:
    """Add an engine, written as PARLEY_ENGINES has them."""
    added = client.post("/engines", engine=engine)
    return Result(added, f"{added['name']} is being added")


@admin_command(app, "remove")
def remove_engine(client: AdminClient, name: str, model: Model = None) -> Result:
    """Let an engine go; its answers go on at others."""
    of = "" if model is None else f"?model={quoted(model)}"
    return Result(client.delete(f"/engines/{quoted(name)}{of}"), f"{name} is let go")


def engine_table(engines: Sequence[dict[str, Any]]) -> Table:
    """A row each. `share` is how much of what is new it gets at present."""
    table = Table(
        *("name", "model", "kind", "state", *NUMBERS, "waits for", "address"),
        numbers=NUMBERS,
        whole=("name",),
    )
    for engine in engines:
        table.add(
            *(engine[name] for name in ("name", "model", "kind")),
            _state(engine),
            _share(engine, engines),
            engine.get("running"),
            engine.get("waiting"),
            _kv_used(engine),
            _waits_for(engine),
            Cell(engine.get("url", ""), "dim"),
        )
    return table


def _state(engine: dict[str, Any]) -> Cell:
    state = engine["state"].replace("_", " ")
    if engine["draining"]:
        return Cell(f"drains, {state}", "yellow")
    return Cell(state, COLOURS.get(engine["state"], "red"))


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
