"""`parley audit`: who did or read what as an admin."""

import time
from typing import Annotated, Any

import typer

from server.terminal.admin_client import PAGE, AdminClient
from server.terminal.commands import Result
from server.terminal.manage.finding import BUILT_IN, find_user
from server.terminal.tables import Table
from server.terminal.times import moment_of, second

Moment = typer.Option(
    metavar="<time>", help="So long ago, as 4h or 7d, or a date, as 2026-11-27T09:30."
)


def show_audit(
    client: AdminClient,
    actor: Annotated[str | None, typer.Option(help="Who: an id or a name.")] = None,
    action: Annotated[str | None, typer.Option(help="What: user.create, or user.*")] = None,
    target: Annotated[str | None, typer.Option(help="To what or whom: an id.")] = None,
    since: Annotated[str | None, Moment] = None,
    until: Annotated[str | None, Moment] = None,
    limit: Annotated[int, typer.Option(help="How many, the newest ones.", min=1)] = 50,
) -> Result:
    """Show who did or read what as an admin.

    The newest come first. Times are UTC, those of --since and --until too.
    """
    now_ms = int(time.time() * 1000)
    entries = find_entries(
        client,
        limit,
        actor=None if actor is None else _id_of(client, actor),
        action=action,
        target=target,
        since=None if since is None else moment_of(since, "--since", now_ms),
        until=None if until is None else moment_of(until, "--until", now_ms),
    )
    table = Table("when", "who", "did", "to", "why", "from", whole=("when", "did"))
    for entry in entries:
        actor, user = entry["actor"], entry["user"] or {"id": ""}
        target = _named(entry["target"], entry["target_name"])
        if user["id"] not in ("", actor):
            target += f" · {_named(user['id'], user['name'])}"
        reason = "" if entry["reason"] == user["id"] else entry["reason"]
        who = _named(actor, entry["actor_name"])
        table.add(second(entry["at"]), who, entry["action"], target, reason, entry["address"])
    return Result(entries, table if entries else "Nothing fits.")


def _named(uid: str, name: str | None) -> str:
    """The id first, which nobody can choose; then what it is called now."""
    return uid if name in (None, uid) else f"{uid} ({name})"


def _id_of(client: AdminClient, actor: str) -> str:
    """An id is taken as it is: what a user did who was removed stays in the log."""
    if actor in BUILT_IN or actor.startswith("usr_"):
        return actor
    return str(find_user(client, actor)["id"])


def find_entries(client: AdminClient, limit: int, **filters: Any) -> list[dict[str, Any]]:
    """The newest that fit. A page may have few of them, or none, and others may follow."""
    entries: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        missing = min(PAGE, limit - len(entries))
        page = client.get("/audit", limit=missing, cursor=cursor, **filters)
        entries += page["entries"]
        cursor = page["next_cursor"]
        if cursor is None or len(entries) >= limit:
            return entries
