"""`parley users`: who may come in, and what they may."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from server.terminal.admin_client import AdminClient, AdminError, quoted
from server.terminal.commands import Told, admin_command
from server.terminal.tables import Cell, Table

DAY_SECONDS = 86_400

app = typer.Typer(name="users", help="Create, change and remove users.", no_args_is_help=True)

Scopes = Annotated[
    list[str] | None, typer.Option(help="admin or admin:transcripts; may be repeated.")
]
Days = Annotated[int | None, typer.Option(help="Days until the token expires.", min=1)]


@admin_command(app, "list")
def list_users(client: AdminClient) -> Told:
    """List all users, the newest first."""
    users = client.get_all("/users", "users")
    table = Table("id", "name", "roles", "since", "")
    for user in users:
        state = Cell("disabled", "red") if user["disabled"] else None
        roles = " ".join(user["roles"])
        table.add(user["id"], user["name"], roles, day(user["created_at"]), state)
    return Told(users, table)


@admin_command(app, "add")
def add_user(
    client: AdminClient,
    name: str,
    admin: Annotated[bool, typer.Option("--admin", help="Give the role admin.")] = False,
    scope: Scopes = None,
    days: Days = None,
) -> Told:
    """Create a user and print their token, once."""
    _check_free(name, client.get_all("/users", "users"))
    user = client.post(
        "/users",
        name=name,
        roles=["user", "admin"] if admin else ["user"],
        scopes=scope or (["admin"] if admin else []),
        expires_in_s=None if days is None else days * DAY_SECONDS,
    )
    note = f"user {user['id']} ({user['name']}); its token, shown this once:"
    return Told(user, user["token"], note)  # alone on standard output, so that a script can take it


@admin_command(app, "revoke")
def revoke_tokens(
    client: AdminClient,
    user: str,
    token: Annotated[str | None, typer.Option(help="This one alone, by its id.")] = None,
) -> Told:
    """Revoke a user's tokens (an id or a name); log their browsers out."""
    found = find_user(client, user)
    path = f"/users/{found['id']}/tokens"
    if token is not None:
        client.delete(f"{path}/{quoted(token)}")
        return Told({"revoked": 1}, "")
    revoked = client.delete(path)
    return Told(revoked, f"{found['name']}: {revoked['revoked']} tokens and cookies revoked")


@admin_command(app, "show")
def show_user(client: AdminClient, user: str) -> Told:
    """Show a user (an id or a name) with the ids of their tokens."""
    found = client.get(f"/users/{find_user(client, user)['id']}")
    state = " · disabled" if found["disabled"] else ""
    title = f"{found['name']} · {found['id']} · {' '.join(found['roles'])}{state}"
    table = Table("token", "kind", "scopes", "since", "until", title=title)
    for token in found["tokens"]:
        until = None if token["expires_at"] is None else day(token["expires_at"])
        scopes = " ".join(token["scopes"])
        table.add(token["id"], token["kind"], scopes, day(token["created_at"]), until)
    return Told(found, table)


@admin_command(app, "disable")
def disable_user(client: AdminClient, user: str) -> Told:
    """Keep a user out (an id or a name), and end their connections."""
    changed = _change(client, user, disabled=True)
    return Told(changed, f"{changed['name']} is kept out")


@admin_command(app, "enable")
def enable_user(client: AdminClient, user: str) -> Told:
    """Let a user in again who was disabled."""
    changed = _change(client, user, disabled=False)
    return Told(changed, f"{changed['name']} may come in")


@admin_command(app, "roles")
def set_roles(
    client: AdminClient,
    user: str,
    roles: Annotated[list[str], typer.Argument(help="user, admin, or both.")],
) -> Told:
    """Give a user (an id or a name) these roles, and no others."""
    changed = _change(client, user, roles=roles)
    return Told(changed, f"{changed['name']}: {' '.join(changed['roles']) or 'no role'}")


@admin_command(app, "rename")
def rename_user(client: AdminClient, user: str, name: str) -> Told:
    """Give a user (an id or a name) another name."""
    found = find_user(client, user)
    others = [one for one in client.get_all("/users", "users") if one["id"] != found["id"]]
    _check_free(name, others)
    return Told(client.patch(f"/users/{found['id']}", name=name), "")


@admin_command(app, "token")
def add_token(client: AdminClient, user: str, scope: Scopes = None, days: Days = None) -> Told:
    """Print another token for a user (an id or a name), once."""
    found = find_user(client, user)
    made = client.post(
        f"/users/{found['id']}/tokens",
        scopes=scope or [],
        expires_in_s=None if days is None else days * DAY_SECONDS,
    )
    return Told(made, made["token"], f"another token of {found['name']}, shown this once:")


@admin_command(app, "quotas")
def show_quotas(client: AdminClient) -> Told:
    """List what users keep and have used today, beside what they may."""
    limits = client.get("/quotas", limit=1)["limits"]
    rows = client.get_all("/quotas", "quotas")
    users = {user["id"]: user for user in client.get_all("/users", "users")}
    return Told({"limits": limits, "quotas": rows}, quotas_table(limits, rows, users))


@admin_command(app, "remove")
def remove_user(client: AdminClient, user: str) -> Told:
    """Remove a user (an id or a name) with all their sessions."""
    found = find_user(client, user)
    client.delete(f"/users/{found['id']}")
    return Told(found, f"{found['name']} and their sessions are gone")


@admin_command(app, "invite")
def invite_user(client: AdminClient, user: str) -> Told:
    """Print a one-time URL that logs in as a user (an id or a name)."""
    path = client.post(f"/users/{find_user(client, user)['id']}/login-codes")["path"]
    return Told({"url": client.url + path}, client.url + path)


def quotas_table(
    limits: dict[str, Any], rows: list[dict[str, Any]], users: dict[str, dict[str, Any]]
) -> Table:
    """Beside what the settings allow, or what a user may instead; 0 of one's own is no limit."""
    table = Table("user", "sessions", "tokens today", numbers=("sessions", "tokens today"))
    for row in rows:
        own = users.get(row["user"]["id"], {}).get("quotas", {})
        most_sessions, most_tokens = (
            limits[of_all] if own.get(of_one) is None else own[of_one] or None
            for of_all, of_one in (
                ("sessions_per_user", "sessions"),
                ("tokens_per_day", "tokens_per_day"),
            )
        )
        table.add(
            row["user"]["name"] or row["user"]["id"],
            of_limit(row["sessions"], most_sessions),
            of_limit(row["tokens_today"], most_tokens),
        )
    return table


def of_limit(used: int, limit: int | None) -> Cell:
    """How much of a limit is used; red where nothing is left."""
    if limit is None:
        return Cell(f"{used:,}")
    return Cell(f"{used:,} of {limit:,}", "red" if used >= limit else "")


def day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d")


def find_user(client: AdminClient, who: str) -> dict[str, Any]:
    """The user with this id, or the only one with this name. Raises `AdminError`."""
    if who.startswith("usr_"):
        return client.get(f"/users/{quoted(who)}")
    named = [user for user in client.get_all("/users", "users") if user["name"] == who]
    if len(named) == 1:
        return named[0]
    found, status = ("several users have", 409) if named else ("no user has", 404)
    raise AdminError(f"{found} the name {who!r}; give an id of `parley users list`", status)


def _check_free(name: str, others: list[dict[str, Any]]) -> None:
    """Raises `AdminError` for a name that is taken: commands could name neither user by it."""
    if " ".join(name.split()) in [user["name"] for user in others]:
        taken = f"another user has the name {name!r}; choose one that tells them apart"
        raise AdminError(taken, 409)


def _change(client: AdminClient, who: str, **changes: Any) -> dict[str, Any]:
    return client.patch(f"/users/{find_user(client, who)['id']}", **changes)
