"""`parley settings`: those of the server as they run."""

from typing import Annotated

import typer

from server.terminal.admin_client import AdminClient
from server.terminal.commands import Result
from server.terminal.tables import Table


def show_settings(
    client: AdminClient,
    changed: Annotated[
        bool, typer.Option("--changed", help="Those alone that do not have their default.")
    ] = False,
) -> Result:
    """Show the settings as they run, secrets masked.

    Each with where it comes from: its default, the environment, or an option of the command.
    """
    settings = client.get("/settings")["settings"]
    shown = [one for one in settings if not changed or one["origin"] != "default"]
    table = Table("setting", "from", "value", whole=("setting",))
    for one in shown:
        table.add(one["name"], one["origin"], one["value"])
    return Result(shown, table)
