"""`parley shares`: which sessions strangers can read by a link."""

import typer

from server.terminal.admin_client import AdminClient, quoted
from server.terminal.commands import Result, admin_command
from server.terminal.tables import Table
from server.terminal.times import day

app = typer.Typer(name="shares", help="Share links of all users.", no_args_is_help=True)


@admin_command(app, "list")
def list_shares(client: AdminClient) -> Result:
    """List every share link by its session, the newest first."""
    shares = client.get_all("/shares", "shares")
    table = Table("session", "user", "since", "title", whole=("session", "since"))
    for share in shares:
        title = "(hidden)" if share["title"] is None else share["title"]
        user = share["user"]["name"] or share["user"]["id"]
        table.add(share["session_id"], user, day(share["shared_at"]), title)
    return Result(shares, table if shares else "Nothing is shared.")


@admin_command(app, "revoke")
def revoke_share(client: AdminClient, session: str) -> Result:
    """Take the link of a session back: it shows nothing any more."""
    client.delete(f"/shares/{quoted(session)}")
    return Result({"session_id": session}, f"{session} is shared no more")
