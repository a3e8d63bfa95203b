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
        since = day(user["created_at"])
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


def set_disabled(client: AdminClient, who: str, disabled: bool) -> None:
    """Keep a user out, with all their open connections, or let them in again."""
    user = find_user(client, who)
    client.patch(f"/users/{user['id']}", disabled=disabled)
    state = "is kept out" if disabled else "may come in"
    console.print(Text(f"{printable(user['name'])} {state}"))


def set_roles(client: AdminClient, who: str, roles: list[str]) -> None:
    """Give a user these roles, and no others."""
    user = find_user(client, who)
    changed = client.patch(f"/users/{user['id']}", roles=roles)
    console.print(Text(f"{printable(changed['name'])}: {' '.join(changed['roles']) or 'no role'}"))


def rename_user(client: AdminClient, who: str, name: str) -> None:
    """Another name. Raises `AdminError` for one that is taken, as of a new user."""
    user = find_user(client, who)
    if " ".join(name.split()) in [one["name"] for one in _all_users(client) if one != user]:
        raise AdminError(f"another user has the name {name!r}; choose one that tells them apart")
    client.patch(f"/users/{user['id']}", name=name)


def show_user(client: AdminClient, who: str, as_json: bool) -> None:
    """A user with their tokens, which are named by ids that `revoke --token` takes."""
    user = client.get(f"/users/{quoted(find_user(client, who)['id'])}")
    if as_json:
        print(json.dumps(user))
        return
    state = " · disabled" if user["disabled"] else ""
    roles = " ".join(user["roles"])
    console.print(Text(f"{printable(user['name'])} · {user['id']} · {roles}{state}"))
    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("token", "kind", "scopes", "since", "until"):
        table.add_column(heading, overflow="fold")
    for token in user["tokens"]:
        until = "" if token["expires_at"] is None else day(token["expires_at"])
        words = (token["id"], token["kind"], " ".join(token["scopes"]), day(token["created_at"]))
        table.add_row(*map(Text, (*words, until)))
    console.print(table)


def add_token(client: AdminClient, who: str, scopes: list[str], days: int | None) -> None:
    """Another token; it is printed alone on stdout."""
    user = find_user(client, who)
    expires_in_s = None if days is None else days * 86_400
    path = f"/users/{user['id']}/tokens"
    token = client.post(path, scopes=scopes, expires_in_s=expires_in_s)["token"]
    notes = Console(stderr=True, highlight=False)
    notes.print(Text(f"another token of {printable(user['name'])}, shown this once:"))
    print(token)


def revoke_token(client: AdminClient, who: str, token_id: str) -> None:
    """One token or cookie, by the id that `show` gives."""
    user = find_user(client, who)
    client.delete(f"/users/{user['id']}/tokens/{quoted(token_id)}")


def show_quotas(client: AdminClient, as_json: bool) -> None:
    """What users keep and have used today, beside what each may."""
    limits: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = client.get("/quotas", limit=200, cursor=cursor)
        limits = page["limits"]
        rows += page["quotas"]
        if (cursor := page["next_cursor"]) is None:
            break
    if as_json:
        print(json.dumps({"limits": limits, "quotas": rows}))
        return
    console.print(quotas_table(limits, rows, {user["id"]: user for user in _all_users(client)}))


def quotas_table(
    limits: dict[str, Any], rows: list[dict[str, Any]], users: dict[str, dict[str, Any]]
) -> Table:
    """Beside what the settings allow, or what a user may instead; 0 of one's own is no limit."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("user", overflow="fold")
    for heading in ("sessions", "tokens today"):
        table.add_column(heading, justify="right")
    for row in rows:
        name = printable(row["user"]["name"] or row["user"]["id"])
        own = users.get(row["user"]["id"], {}).get("quotas", {})
        most_sessions, most_tokens = (
            limits[of_all] if own.get(of_one) is None else own[of_one] or None
            for of_all, of_one in (
                ("sessions_per_user", "sessions"),
                ("tokens_per_day", "tokens_per_day"),
            )
        )
        sessions = of_limit(row["sessions"], most_sessions)
        table.add_row(Text(name), sessions, of_limit(row["tokens_today"], most_tokens))
    return table


def of_limit(used: int, limit: int | None) -> Text:
    """How much of a limit is used; red where nothing is left."""
    if limit is None:
        return Text(f"{used:,}")
    return Text(f"{used:,} of {limit:,}", "red" if used >= limit else "")


def day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d")


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
