"""Users and groups by an id or a name, as commands are given them."""

from typing import Any

from server.terminal.admin_client import AdminClient, AdminError, quoted

BUILT_IN = ("local", "admin")  # users whom no list has


def find_user(client: AdminClient, who: str) -> dict[str, Any]:
    """The user with this id, or the only one with this name. Raises `AdminError`."""
    if who.startswith("usr_"):
        return client.get(f"/users/{quoted(who)}")
    users = client.get_all("/users", "users")
    if who in BUILT_IN and not any(one["name"] == who for one in users):
        known = f"`parley users quotas {who}` and `storage {who}` show what it has"
        raise AdminError(f"{who} is built in: {known}", 409)
    return _only(users, who, "user")


def find_group(client: AdminClient, which: str) -> dict[str, Any]:
    """The group with this id, or the only one with this name. Raises `AdminError`."""
    if which.startswith("grp_"):
        return client.get(f"/groups/{quoted(which)}")
    return _only(client.get_all("/groups", "groups"), which, "group")


def check_free(name: str, others: list[dict[str, Any]], kind: str) -> None:
    """Raises `AdminError` for a name that is taken: commands could name neither by it."""
    if " ".join(name.split()) in [one["name"] for one in others]:
        taken = f"another {kind} has the name {name!r}; choose one that tells them apart"
        raise AdminError(taken, 409)


def _only(some: list[dict[str, Any]], name: str, kind: str) -> dict[str, Any]:
    named = [one for one in some if one["name"] == name]
    if len(named) == 1:
        return named[0]
    found, status = (f"several {kind}s have", 409) if named else (f"no {kind} has", 404)
    raise AdminError(f"{found} the name {name!r}; give an id of `parley {kind}s list`", status)
