"""`parley workers`: who serves, how their engines are, and who has fallen silent."""

from typing import Annotated, Any

import typer

from server.terminal.admin_client import AdminClient, quoted
from server.terminal.commands import Reason, Result, admin_command
from server.terminal.sessions.figures import duration
from server.terminal.tables import Cell, Table

HEADINGS = ("worker", "host", "pid", "version", "engine", "running", "connections", "seen", "")

app = typer.Typer(name="workers", help="List, drain and restart workers.", no_args_is_help=True)


@admin_command(app, "list")
def list_workers(client: AdminClient) -> Result:
    """List the workers, their engines, and who is silent."""
    roll = client.get("/replicas")
    return Result(roll, workers_table(roll))


@admin_command(app, "drain")
def drain_worker(client: AdminClient, worker: str, reason: Reason = "") -> Result:
    """Let a worker finish or hand over its answers, and restart."""
    drains = client.post(f"/replicas/{quoted(worker)}/drain", reason=reason)
    return Result(drains, f"{worker} drains")


@admin_command(app, "restart")
def restart_worker(client: AdminClient, worker: str, reason: Reason = "") -> Result:
    """Restart a worker at once; its answers go on at another one."""
    restarts = client.post(f"/replicas/{quoted(worker)}/restart", reason=reason)
    return Result(restarts, f"{worker} restarts")


@admin_command(app, "log-level")
def set_log_level(
    client: AdminClient,
    worker: str,
    level: Annotated[str, typer.Argument(help="debug, info, warning or error.")],
    reason: Reason = "",
) -> Result:
    """Have a worker log more, or less, until it ends."""
    path = f"/replicas/{quoted(worker)}/log-level"
    logs = client.post(path, level=level, reason=reason)
    return Result(logs, f"{worker} logs {level} until it ends")


def workers_table(roll: dict[str, Any]) -> Table:
    """Those that are there, then those that are missing; ages are counted by Redis' clock."""
    table = Table(*HEADINGS, whole=("worker",))
    silent = {worker["id"] for worker in roll["missing"]}
    present = [worker for worker in roll["replicas"] if worker["id"] not in silent]
    for worker in (*present, *roll["missing"]):
        table.add(
            *(worker.get(name) for name in ("id", "host", "pid", "version")),
            _engine(worker, roll["now"]),
            worker.get("active_responses"),
            worker.get("connections"),
            f"{duration(max(0, roll['now'] - worker['seen_at']))} ago",
            _state(worker, worker["id"] in silent),
        )
    return table


def _engine(worker: dict[str, Any], now: int) -> Cell:
    engine = str(worker.get("engine", ""))
    if engine == "ok":
        return Cell("ok", "green")
    since = worker.get("engine_since")
    return Cell(engine if not since else f"{engine} for {duration(max(0, now - since))}", "red")


def _state(worker: dict[str, Any], is_silent: bool) -> Cell | None:
    if is_silent:
        return Cell("silent", "red")
    if worker.get("draining"):
        return Cell("drains", "yellow")
    level = worker.get("log_level", "info")
    return None if level == "info" else Cell(f"logs {level}", "yellow")
