"""`parley sessions`: the live list, and what scripts do to one session."""

from typing import Annotated

import typer

from server.terminal.admin_client import AdminClient, quoted
from server.terminal.commands import (
    AsJson,
    DataDir,
    Reason,
    Result,
    admin_client,
    admin_command,
    in_terminal,
    printing,
)

app = typer.Typer(name="sessions", help="Watch sessions live; stop and evict.")


@app.callback(invoke_without_command=True)
def sessions(
    context: typer.Context,
    data_dir: DataDir = None,
    everything: Annotated[bool, typer.Option("--all", help="Include idle sessions.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the list and end.")] = False,
    as_json: AsJson = False,
    find: Annotated[
        str,
        typer.Option(help="With this in a user's name, or else in the title; or by an id. Of all."),
    ] = "",
) -> None:
    """Watch sessions and the server's figures live, and stop and evict by keys."""
    if context.invoked_subcommand is not None:
        return
    everything = everything or bool(find)
    with admin_client(data_dir, sessions) as client:
        if once or as_json or not in_terminal():
            from server.terminal.sessions.table import list_once
            from server.terminal.text import output_console

            console = output_console()
            with printing():
                list_once(client, console, everything=everything, as_json=as_json, wanted=find)
        else:
            from server.terminal.sessions.live import run_live

            raise typer.Exit(run_live(client, everything=everything, wanted=find))


@admin_command(app, "stop")
def stop_session(client: AdminClient, session: str, reason: Reason = "") -> Result:
    """Stop a session's answers."""
    stopped = client.post(f"/sessions/{quoted(session)}/stop", reason=reason)["responses"]
    lines = [f"{one['id']} {one['status']}" for one in stopped]
    return Result(stopped, lines or "nothing was being answered")


@admin_command(app, "evict")
def evict_session(
    client: AdminClient,
    session: str,
    reason: Annotated[str, typer.Option(help="Shown to the viewers.")],
    lock: Annotated[bool, typer.Option("--lock", help="No new answers until unlocked.")] = False,
) -> Result:
    """Stop a session's answers and close its viewers' connections."""
    evicted = client.post(f"/sessions/{quoted(session)}/evict", reason=reason, lock=lock)
    return Result(evicted, f"{session} is evicted{' and locked' if lock else ''}")


@admin_command(app, "unlock")
def unlock_session(client: AdminClient, session: str) -> Result:
    """Let a locked session take answers again."""
    unlocked = client.post(f"/sessions/{quoted(session)}/unlock")
    return Result(unlocked, f"{session} takes answers again")
