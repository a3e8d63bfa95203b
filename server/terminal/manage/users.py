"""`parley users`: who may come in, what they may, and what they keep."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from server.terminal.admin_client import AdminClient, AdminError, quoted
from server.terminal.commands import Result, admin_command
from server.terminal.manage.finding import BUILT_IN, check_free, find_user
from server.terminal.manage.quotas import NO_QUOTAS, GivenQuotas, users_table
from server.terminal.tables import Cell, Table
from server.terminal.times import DAY_SECONDS, day

TOKEN_HEADINGS = ("token", "kind", "scopes", "since", "until", "purpose")
NOTHING_OWN = {"tokens_per_day": None, "sessions": None, "answers": None}

app = typer.Typer(name="users", help="Create, change and remove users.", no_args_is_help=True)


class TokenOptions(NamedTuple):
    """What a new token is to be like."""

    scope: Annotated[
        list[str] | None,
        typer.Option(help="admin, admin:operate or admin:transcripts; may be repeated."),
    ] = None
    days: Annotated[int | None, typer.Option(help="Days until the token expires.", min=1)] = None
    purpose: Annotated[str, typer.Option(help="What it is for; `users show` says it.")] = ""

    def fields(self, scopes: Sequence[str] = ()) -> dict[str, Any]:
        """As the API takes them, with these scopes where none is given."""
        lifetime = None if self.days is None else self.days * DAY_SECONDS
        given = {"expires_in_s": lifetime, "purpose": self.purpose}
        return {"scopes": self.scope or list(scopes), **given}


ANY_TOKEN = TokenOptions()


@admin_command(app, "list")
def list_users(client: AdminClient) -> Result:
    """List all users, the newest first."""
    users = client.get_all("/users", "users")
    return Result(users, users_list(users))


@admin_command(app, "add")
def add_user(
    client: AdminClient,
    name: str,
    admin: Annotated[bool, typer.Option("--admin", help="Give the role admin.")] = False,
    token: TokenOptions = ANY_TOKEN,
) -> Result:
    """Create a user and print their token, once."""
    check_free(name, client.get_all("/users", "users"), "user")
    user = client.post_once(
        "/users",
        name=name,
        roles=["user", "admin"] if admin else ["user"],
        **token.fields(["admin"] if admin else []),
    )
    note = f"user {user['id']} ({user['name']}); its token, shown this once:"
    if user.get("namesakes"):  # which an older worker does not tell
        note = f"{', '.join(user['namesakes'])} has such a name, too\n{note}"
    # The token is alone on standard output, so that a script can take it.
    return Result(user, user["token"], note)


@admin_command(app, "invite")
def invite_user(client: AdminClient, user: str) -> Result:
    """Print a one-time URL that logs in as a user (an id or a name)."""
    path = client.post(f"/users/{find_user(client, user)['id']}/login-codes")["path"]
    return Result({"url": client.url + path}, client.url + path)


@admin_command(app, "show")
def show_user(client: AdminClient, user: str) -> Result:
    """Show a user (an id or a name) with the ids of their tokens."""
    found = client.get(f"/users/{find_user(client, user)['id']}")
    words = [found["name"], found["id"], " ".join(found["roles"])]
    words += ["disabled"] if found["disabled"] else []
    words += [f"in {found['group']}"] if found["group"] else []
    table = Table(*TOKEN_HEADINGS, whole=("token", "since", "until"), title=" · ".join(words))
    for token in found["tokens"]:
        until = None if token["expires_at"] is None else day(token["expires_at"])
        scopes, since = " ".join(token["scopes"]), day(token["created_at"])
        table.add(token["id"], token["kind"], scopes, since, until, token["purpose"])
    return Result(found, table)


@admin_command(app, "token")
def add_token(client: AdminClient, user: str, token: TokenOptions = ANY_TOKEN) -> Result:
    """Print another token for a user (an id or a name), once."""
    found = find_user(client, user)
    made = client.post(f"/users/{found['id']}/tokens", **token.fields())
    return Result(made, made["token"], f"another token of {found['name']}, shown this once:")


@admin_command(app, "revoke")
def revoke_tokens(
    client: AdminClient,
    user: str,
    token: Annotated[str | None, typer.Option(help="This one alone, by its id.")] = None,
) -> Result:
    """Revoke a user's tokens (an id or a name); log their browsers out."""
    found = find_user(client, user)
    path = f"/users/{found['id']}/tokens"
    if token is not None:
        client.delete(f"{path}/{quoted(token)}")
        return Result({"revoked": 1}, f"{found['name']}: token {token} revoked")
    revoked = client.delete(path)
    return Result(revoked, f"{found['name']}: {revoked['revoked']} tokens and cookies revoked")


@admin_command(app, "disable")
def disable_user(client: AdminClient, user: str) -> Result:
    """Keep a user out (an id or a name), and end their connections."""
    changed = _change(client, user, disabled=True)
    return Result(changed, f"{changed['name']} is kept out")


@admin_command(app, "enable")
def enable_user(client: AdminClient, user: str) -> Result:
    """Let a user in again who was disabled."""
    changed = _change(client, user, disabled=False)
    return Result(changed, f"{changed['name']} may come in")


@admin_command(app, "roles")
def set_roles(
    client: AdminClient,
    user: str,
    roles: Annotated[list[str], typer.Argument(help="user, admin, or both.")],
) -> Result:
    """Give a user (an id or a name) these roles, and no others."""
    changed = _change(client, user, roles=roles)
    return Result(changed, f"{changed['name']}: {' '.join(changed['roles']) or 'no role'}")


@admin_command(app, "rename")
def rename_user(client: AdminClient, user: str, name: str) -> Result:
    """Give a user (an id or a name) another name."""
    found = find_user(client, user)
    others = [one for one in client.get_all("/users", "users") if one["id"] != found["id"]]
    check_free(name, others, "user")
    changed = client.patch(f"/users/{found['id']}", name=name)
    return Result(changed, f"{found['name']} is {changed['name']} now")


@admin_command(app, "quotas")
def user_quotas(
    client: AdminClient,
    user: Annotated[str | None, typer.Argument(help="An id or a name; without it, all.")] = None,
    given: GivenQuotas = NO_QUOTAS,
) -> Result:
    """Show what users have and may have, or set it for one.

    A quota is a number, `none` for no limit, or `default` for what the settings say.
    """
    if user is None:
        if any(given):
            raise typer.BadParameter("whose quotas? Those of all are settings", param_hint="user")
        users = client.get_all("/users", "users")
    elif user in BUILT_IN:
        if any(given):
            built_in = f"{user} is built in: its quotas are those of the settings"
            raise AdminError(built_in, 409)
        users = [{"id": user, "quotas": NOTHING_OWN}]
    else:
        users = [find_user(client, user)]
        quotas = given.changed(users[0]["quotas"], is_group=False)
        if quotas is not None:
            users = [client.patch(f"/users/{users[0]['id']}", quotas=quotas)]
    own = {one["id"]: one["quotas"] for one in users}
    rows = [
        {**row, "own": own.get(row["user"]["id"], NOTHING_OWN)}
        for row in client.get_all("/quotas", "quotas")
        if user is None or row["user"]["id"] in own
    ]
    limits = client.get("/quotas", limit=1)["limits"]
    return Result({"limits": limits, "quotas": rows}, users_table(limits, rows))


@admin_command(app, "storage")
def show_storage(
    client: AdminClient,
    user: Annotated[str | None, typer.Argument(help="An id or a name; without it, all.")] = None,
) -> Result:
    """Show what users store, the most bytes first."""
    if user is None:
        names = {
            row["user"]["id"]: row["user"]["name"]
            for row in client.get_all("/quotas", "quotas")
            if row["sessions"]
        }
    elif user in BUILT_IN:
        names = {user: user}
    else:
        found = find_user(client, user)
        names = {found["id"]: found["name"]}
    stored = [{"name": name, **client.get(f"/users/{uid}/storage")} for uid, name in names.items()]
    stored.sort(key=lambda one: -one["bytes"])
    numbers = ("sessions", "messages", "bytes")
    table = Table("user", *numbers, "", numbers=numbers)
    for one in stored:
        is_part = one["counted"] < one["sessions"]
        note = f"of the {one['counted']:,} newest sessions" if is_part else None
        table.add(one["name"] or one["user_id"], *(f"{one[name]:,}" for name in numbers), note)
    return Result(stored, table if stored else "Nobody stores anything.")


@admin_command(app, "remove")
def remove_user(client: AdminClient, user: str) -> Result:
    """Remove a user (an id or a name) with all their sessions."""
    found = find_user(client, user)
    client.delete(f"/users/{found['id']}")
    return Result(found, f"{found['name']} and their sessions are gone")


def users_list(users: list[dict[str, Any]]) -> Table:
    table = Table("id", "name", "roles", "since", "", whole=("id", "since"))
    for user in users:
        state = Cell("disabled", "red") if user["disabled"] else None
        roles = " ".join(user["roles"])
        table.add(user["id"], user["name"], roles, day(user["created_at"]), state)
    return table


def _change(client: AdminClient, who: str, **changes: Any) -> dict[str, Any]:
    return client.patch(f"/users/{find_user(client, who)['id']}", **changes)
