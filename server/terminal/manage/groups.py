"""`parley groups`: users who share quotas."""

import typer

from server.terminal.admin_client import AdminClient
from server.terminal.commands import Result, admin_command
from server.terminal.manage.finding import check_free, find_group, find_user
from server.terminal.manage.quotas import NO_QUOTAS, GivenQuotas, groups_table
from server.terminal.manage.users import users_list

app = typer.Typer(name="groups", help="Groups of users, who share quotas.", no_args_is_help=True)


@admin_command(app, "list")
def list_groups(client: AdminClient) -> Result:
    """List the groups with their quotas, the newest first."""
    groups = client.get_all("/groups", "groups")
    return Result(groups, groups_table(groups) if groups else "There are no groups.")


@admin_command(app, "add")
def add_group(client: AdminClient, name: str, given: GivenQuotas = NO_QUOTAS) -> Result:
    """Make a group. A quota is a number, or `none` for no limit."""
    quotas = given.changed({}, is_group=True)
    check_free(name, client.get_all("/groups", "groups"), "group")
    group = client.post("/groups", name=name, quotas=quotas)
    return Result(group, f"group {group['id']} ({group['name']})")


@admin_command(app, "rename")
def rename_group(client: AdminClient, group: str, name: str) -> Result:
    """Give a group (an id or a name) another name."""
    found = find_group(client, group)
    others = [one for one in client.get_all("/groups", "groups") if one["id"] != found["id"]]
    check_free(name, others, "group")
    changed = client.patch(f"/groups/{found['id']}", name=name)
    return Result(changed, f"{found['name']} is {changed['name']} now")


@admin_command(app, "quotas")
def group_quotas(client: AdminClient, group: str, given: GivenQuotas = NO_QUOTAS) -> Result:
    """Show or set what a group (an id or a name) shares.

    A quota is a number, or `none` for no limit.
    """
    found = find_group(client, group)
    quotas = given.changed(found["quotas"], is_group=True)
    if quotas is not None:
        found = client.patch(f"/groups/{found['id']}", quotas=quotas)
    return Result(found, groups_table([found]))


@admin_command(app, "members")
def list_members(client: AdminClient, group: str) -> Result:
    """List the members of a group (an id or a name)."""
    found = find_group(client, group)
    members = client.get_all(f"/groups/{found['id']}/members", "users")
    return Result(members, users_list(members) if members else f"Nobody is in {found['name']}.")


@admin_command(app, "join")
def join_group(client: AdminClient, group: str, user: str) -> Result:
    """Make a user a member; they leave the group that they were in."""
    found, who = find_group(client, group), find_user(client, user)
    joined = client.put(f"/groups/{found['id']}/members/{who['id']}")
    return Result(joined, f"{who['name']} is in {found['name']}")


@admin_command(app, "leave")
def leave_group(client: AdminClient, group: str, user: str) -> Result:
    """Let a member leave a group; they stay a user."""
    found, who = find_group(client, group), find_user(client, user)
    client.delete(f"/groups/{found['id']}/members/{who['id']}")
    return Result(who, f"{who['name']} has left {found['name']}")


@admin_command(app, "remove")
def remove_group(client: AdminClient, group: str) -> Result:
    """Remove a group (an id or a name); its members stay users."""
    found = find_group(client, group)
    client.delete(f"/groups/{found['id']}")
    return Result(found, f"{found['name']} is gone; its members stay users")
