"""`parley users`: who may come in, in the terminal."""

import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from server.terminal.admin_client import AdminClient, AdminError, quoted
from server.terminal.text import output_console, printable

console = output_console()


def list_users(client: AdminClient, as_json: bool) -> None:
    """Every user, the newest first."""
    users = _all_users(client)
    if as_json:
        print(json.dumps(users))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("id", "name", "roles", "since", ""):
        table.add_column(heading, overflow="fold")
    for user in users:
        since = datetime.fromtimestamp(user["created_at"] / 1000, UTC).strftime("%Y-%m-%d")
        state = Text("disabled", "red") if user["disabled"] else Text("")
        name, roles = Text(printable(user["name"])), Text(" ".join(user["roles"]))
        table.add_row(Text(user["id"]), name, roles, Text(since), state)
    console.print(table)


def add_user(
    client: AdminClient, name: str, roles: list[str], scopes: list[str], days: int | None
) -> None:
    """A new user; the token is printed alone on stdout, so that a script can take it.

    Raises `AdminError` for a name that is taken: commands could name neither user by it.
    """
    if " ".join(name.split()) in [user["name"] for user in _all_users(client)]:
        raise AdminError(f"another user has the name {name!r}; choose one that tells them apart")
    user = client.post(
        "/users",
        name=name,
        roles=roles,
        scopes=scopes,
        expires_in_s=None if days is None else days * 86_400,
    )
    notes = Console(stderr=True, highlight=False)
    notes.print(Text(f"user {user['id']} ({printable(user['name'])}); its token, shown this once:"))
    print(user["token"])


def revoke_tokens(client: AdminClient, who: str) -> None:
    """Revoke every token of a user, and log their browsers out."""
    user = find_user(client, who)
    revoked = client.delete(f"/users/{user['id']}/tokens")["revoked"]
    console.print(Text(f"{printable(user['name'])}: {revoked} tokens and cookies revoked"))


def remove_user(client: AdminClient, who: str) -> None:
    """Remove a user with all their sessions."""
    user = find_user(client, who)
    client.delete(f"/users/{user['id']}")
    console.print(Text(f"{printable(user['name'])} and their sessions are gone"))


def invite_user(client: AdminClient, who: str) -> None:
    """A one-time URL that logs a browser in as this user."""
    user = find_user(client, who)
    print(client.url + client.post(f"/users/{user['id']}/login-codes")["path"])


def find_user(client: AdminClient, who: str) -> dict[str, Any]:
    """The user with this id, or the only one with this name. Raises `AdminError`."""
    if who.startswith("usr_"):
        return client.get(f"/users/{quoted(who)}")
    named = [user for user in _all_users(client) if user["name"] == who]
    if len(named) != 1:
        found = "several users have" if named else "no user has"
        raise AdminError(f"{found} the name {who!r}; give an id of `parley users list`")
    return named[0]


def _all_users(client: AdminClient) -> list[dict[str, Any]]:
    users: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = client.get("/users", limit=200, cursor=cursor)
        users += page["users"]
        if (cursor := page["next_cursor"]) is None:
            return users
