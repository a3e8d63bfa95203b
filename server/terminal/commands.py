"""What commands share that ask the running server: their options, how they answer, how they end.

`admin_command` gives a command `--data-dir` and `--json`. The command returns what it has to say,
as an object for scripts and as words for people, and never prints itself.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.models import OptionInfo

from server.config.settings import PREFIX
from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.running import NoServer, find_server
from server.terminal.tables import Table
from server.terminal.text import printable

# How a command ends that has not done what it was told.
REFUSED, NOT_ASKED, NO_RIGHT, NOT_THERE, AWAY = 1, 2, 3, 4, 5
# Parameters of commands that the API calls otherwise.
FIELDS = {"life": "expires_in_s", "days": "expires_in_s", "scope": "scopes"}

DataDir = Annotated[
    Path | None,
    typer.Option(help="Data directory of the running server.", envvar=PREFIX + "DATA_DIR"),
]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
Reason = Annotated[str, typer.Option(help="For the audit log.")]


class Result(NamedTuple):
    """What a command has found or done; `note` is for people, and no part of it."""

    data: Any
    text: str | list[str] | Table  # a line, lines, or a table
    note: str = ""


Command = TypeVar("Command", bound=Callable[..., Result])


def admin_command(group: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Add a command for admins to a group. Called as a function, it takes a client first.

    A parameter that is a named tuple stands for an option for each of its fields.
    """

    def add(command: Command) -> Command:
        def run(data_dir: DataDir = None, as_json: AsJson = False, **given: Any) -> None:
            for name, bundle in bundles.items():
                given[name] = bundle(*(given.pop(option) for option in bundle._fields))
            with admin_client(data_dir, command) as client:
                result = command(client, **given)
            print_result(result, as_json)

        bundles = _bundles(command)
        _, *own = _parameters(command)
        shared = [one for one in inspect.signature(run).parameters.values() if one.name != "given"]
        run.__doc__ = command.__doc__
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [one.replace(kind=keyword) for one in (*own, *shared)]
        # Typer reads the options there; the type of a function does not declare the attribute.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        group.command(name)(run)
        return command

    return add


def _bundles(command: Callable[..., object]) -> dict[str, Any]:
    """Its parameters that stand for several options: named tuples, of which several commands
    may have the same.
    """
    named = inspect.signature(command).parameters
    return {
        name: one.annotation for name, one in named.items() if hasattr(one.annotation, "_fields")
    }


def _parameters(command: Callable[..., object]) -> list[inspect.Parameter]:
    """All of them, the options of its bundles one by one."""
    bundles = _bundles(command)
    found: list[inspect.Parameter] = []
    for name, one in inspect.signature(command).parameters.items():
        found += inspect.signature(bundles[name]).parameters.values() if name in bundles else [one]
    return found


def print_result(result: Result, as_json: bool) -> None:
    """Print it; what strangers wrote comes to a terminal as text."""
    if result.note and not as_json:
        print(printable(result.note), file=sys.stderr)
    with printing():
        if as_json:
            print(json.dumps(result.data))
        elif isinstance(result.text, Table):
            result.text.show()
        else:
            for line in [result.text] if isinstance(result.text, str) else result.text:
                print(printable(line))


@contextmanager
def printing() -> Iterator[None]:
    """Say on one line why what is printed has found no room; a reader may go without a word."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # the interpreter flushes it at exit
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(REFUSED) from None
        raise fail(f"this cannot be written: {error.strerror}", REFUSED) from None


@contextmanager
def admin_client(data_dir: Path | None, command: Callable[..., object]) -> Iterator[AdminClient]:
    """Open the running server's admin API; print as one line what it refuses this command."""
    try:
        yield AdminClient(*find_server(data_dir, "admin-token"))
    except NoServer as error:
        raise fail(str(error)) from None
    except typer.BadParameter as error:
        raise fail(f"{error.param_hint}: {error.message}") from None
    except AdminError as error:
        option = _options(command).get(error.field.rpartition(".")[2])
        words = str(error) if option is None else f"{option}: {error.message}"
        raise fail(words, exit_code(error.status)) from None


def _options(command: Callable[..., object]) -> dict[str, str]:
    """What a user types for each field of the API that an option of the command gives."""
    options = {}
    for one in _parameters(command):
        for declared in getattr(one.annotation, "__metadata__", ()):
            if isinstance(declared, OptionInfo):
                # Where it is an annotation, typer keeps the first name in the place of a default.
                names = map(str, (declared.default, *(declared.param_decls or ())))
                given = [name for name in names if name.startswith("--")]
                option = given[0] if given else "--" + one.name.replace("_", "-")
                options[FIELDS.get(one.name, one.name)] = option
    return options


def exit_code(status: int | None) -> int:
    """By the status of HTTP; without one there was no answer."""
    if status is None or status >= 500:
        return AWAY
    return {401: NO_RIGHT, 403: NO_RIGHT, 404: NOT_THERE}.get(status, REFUSED)


def fail(message: str, code: int = NOT_ASKED) -> typer.Exit:
    """Say on one line what is wrong, whoever's words are in it; raise what is returned."""
    print(f"parley: {printable(message)}", file=sys.stderr)
    return typer.Exit(code)


def in_terminal() -> bool:
    """Whether somebody sits before it, at a terminal that can be drawn on."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb"
