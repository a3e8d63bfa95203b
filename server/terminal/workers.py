"""`parley workers`: who serves, how their engines are, and who has fallen silent."""

import json
from typing import Any

from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient
from server.terminal.sessions.figures import duration
from server.terminal.text import output_console, printable

HEADINGS = ("worker", "host", "pid", "version", "engine", "running", "connections", "seen", "")


def list_workers(client: AdminClient, as_json: bool) -> None:
    """Ages are counted by Redis' clock."""
    roll = client.get("/replicas")
    if as_json:
        print(json.dumps(roll))
    else:
        output_console().print(workers_table(roll))


def workers_table(roll: dict[str, Any]) -> Table:
    """Those that are there, then those that are missing."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    silent = {worker["id"] for worker in roll["missing"]}
    present = [worker for worker in roll["replicas"] if worker["id"] not in silent]
    for worker in (*present, *roll["missing"]):
        names = ("id", "host", "pid", "version")
        table.add_row(
            *(Text(printable(str(worker.get(name, "")))) for name in names),
            _engine(worker, roll["now"]),
            str(worker.get("active_responses", "")),
            str(worker.get("connections", "")),
            Text(f"{duration(max(0, roll['now'] - worker['seen_at']))} ago"),
            _state(worker, worker["id"] in silent),
        )
    return table


def _engine(worker: dict[str, Any], now: int) -> Text:
    engine = printable(str(worker.get("engine", "")))
    if engine == "ok":
        return Text("ok", "green")
    since = worker.get("engine_since")
    return Text(engine if not since else f"{engine} for {duration(max(0, now - since))}", "red")


def _state(worker: dict[str, Any], is_silent: bool) -> Text:
    if is_silent:
        return Text("silent", "red")
    return Text("drains", "yellow") if worker.get("draining") else Text("")
