"""`parley chat`: its arguments, and whether somebody sits before it."""

import io
import sys
from typing import Annotated, TextIO

import typer

from server.terminal.commands import DataDir, fail, in_terminal
from server.terminal.running import NoServer, follow_server


def chat(
    question: Annotated[
        str | None, typer.Argument(help="Ask this first; with --once, this alone.")
    ] = None,
    data_dir: DataDir = None,
    session: Annotated[str | None, typer.Option(help="Go on with this session.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the answer to one question, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The answer as one JSON object; like --once.")
    ] = False,
) -> None:
    """Chat in the terminal, or ask one question in a pipe.

    Without a terminal, or with --once, the question is read from standard input, and only the
    answer is printed. In the chat, /help lists commands and keys.
    """
    try:
        address = follow_server(data_dir)
    except NoServer as error:
        raise fail(str(error)) from None
    if once or as_json or not in_terminal():
        from server.terminal.chat.once import STOPPED, run_once

        _be_lenient(sys.stdin, sys.stdout, sys.stderr)
        try:
            question = (sys.stdin.read() if question is None else question).strip()
        except KeyboardInterrupt:  # somebody types it, and thinks better of it
            raise typer.Exit(STOPPED) from None
        if not question:
            raise fail("there is no question: write it behind --once, or into standard input")
        raise typer.Exit(run_once(address, session, question, as_json=as_json))
    from server.terminal.chat.interactive import run_interactive

    raise typer.Exit(run_interactive(address, session, question))


def _be_lenient(*streams: TextIO) -> None:
    """What is no text, or has no place in the terminal's encoding, becomes a question mark."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
