"""`parley notice`: one line that every user is shown."""

from typing import Annotated, Any

import typer

from server.terminal.admin_client import AdminClient
from server.terminal.commands import Result, admin_command
from server.terminal.times import second, seconds_of

app = typer.Typer(name="notice", help="A notice to all users.", no_args_is_help=True)


@admin_command(app, "show")
def show_notice(client: AdminClient) -> Result:
    """Show the notice that users are shown now."""
    notice = client.get("/notice")["notice"]
    return Result(notice, _words(notice) if notice else "No notice is shown.")


@admin_command(app, "set")
def set_notice(
    client: AdminClient,
    text: str,
    life: Annotated[str, typer.Option("--for", metavar="<time>", help="30m, 4h or 7d.")] = "1h",
    warning: Annotated[bool, typer.Option("--warning", help="Not info, but a warning.")] = False,
) -> Result:
    """Show all users a notice, in the place of another."""
    notice = client.put(
        "/notice",
        text=text,
        expires_in_s=seconds_of(life, "--for"),
        level="warning" if warning else "info",
    )["notice"]
    return Result(notice, _words(notice))


@admin_command(app, "clear")
def clear_notice(client: AdminClient) -> Result:
    """Show the notice no more."""
    client.delete("/notice")
    return Result(None, "No notice is shown any more.")


def _words(notice: dict[str, Any]) -> str:
    until = second(notice["until"])
    return f"{notice['level']} by {notice['by']}, until {until} UTC: {notice['text']}"
