"""How commands that ask the running server answer, and how they end."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from server.cli import app as parley
from server.terminal import commands
from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.commands import Result, admin_command
from server.terminal.tables import Table

HOSTILE = "Ada\x1b]0;owned\x07\n\u202e"


class Life(NamedTuple):
    days: Annotated[int, typer.Option()] = 1
    life: Annotated[str, typer.Option("--for")] = ""


def run(result: Any, *words: str, folder: Path) -> Any:
    """A command that says this, as a process would end; an `AdminError` is raised."""
    app = typer.Typer()
    (folder / "server.json").write_text('{"url": "http://127.0.0.1:1"}')
    (folder / "admin-token").write_text("secret")

    @admin_command(app, "do")
    def do(
        client: AdminClient,
        name: str,
        times: Annotated[int, typer.Option()] = 1,
        life: Life = Life(),  # noqa: B008  (a tuple: nobody can change it)
    ) -> Result:
        """Do it."""
        assert client.url == "http://127.0.0.1:1"
        if isinstance(result, AdminError):
            raise result
        assert isinstance(result, Result)
        return result._replace(
            data={"name": name, "times": times, "found": result.data, **life._asdict()}
        )

    return CliRunner().invoke(app, ["x", "--data-dir", str(folder), *words])


def test_people_get_words_and_scripts_the_object(tmp_path: Path) -> None:
    result = Result([1], ["done", "well"], "by the way")
    for_people = run(result, folder=tmp_path)
    assert (for_people.exit_code, for_people.stdout) == (0, "done\nwell\n")
    assert for_people.stderr == "by the way\n"
    for_scripts = run(result, "--json", "--times", "2", "--for", "1h", folder=tmp_path)
    given = {"name": "x", "times": 2, "days": 1, "life": "1h"}
    assert json.loads(for_scripts.output) == {**given, "found": [1]}


@pytest.mark.row("B60")
def test_words_of_strangers_command_no_terminal(tmp_path: Path) -> None:
    result = Result(HOSTILE, HOSTILE, HOSTILE)
    for words in ((), ("--json",)):
        output = run(result, *words, folder=tmp_path).output
        assert not {"\x1b", "\x07", "\u202e"} & {*output}
        assert len(output.splitlines()) == (1 if words else 2)
    failed = run(AdminError(HOSTILE, 409), folder=tmp_path)
    assert failed.stderr == "parley: Ada·]0;owned···\n"


@pytest.mark.parametrize(
    ("status", "code"), [(409, 1), (422, 1), (401, 3), (403, 3), (404, 4), (503, 5), (None, 5)]
)
def test_a_refusal_is_one_line_and_a_code_that_says_of_what_kind(
    status: int | None, code: int, tmp_path: Path
) -> None:
    ended = run(AdminError("no", status), folder=tmp_path)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (code, "", "parley: no\n")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("times", "--times: at most 2"),
        ("quotas.times", "--times: at most 2"),
        ("expires_in_s", "--for: at most 2"),
        ("name", "name: at most 2"),
        ("", "at most 2"),
    ],
)
def test_a_refusal_names_the_option_that_was_typed(field: str, said: str, tmp_path: Path) -> None:
    ended = run(AdminError("at most 2", 400, field), folder=tmp_path)
    assert (ended.exit_code, ended.stderr) == (1, f"parley: {said}\n")


def test_nothing_is_asked_where_no_server_runs(tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as raised, commands.admin_client(tmp_path, print):
        raise AssertionError("unreachable")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("words", ["done", Table("name")])
def test_what_finds_no_room_is_told_on_one_line(
    words: str | Table,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    full = open("/dev/full", "w")
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(typer.Exit) as raised:
        commands.print_result(Result({}, words, note="their token:"), as_json)
    sys.stdout.close()  # another one, of which nothing is kept
    with contextlib.suppress(OSError):
        full.close()
    assert raised.value.exit_code == commands.REFUSED
    assert capfd.readouterr().err.splitlines()[-1] == (
        "parley: this cannot be written: No space left on device"
    )


def test_a_table_is_words_too(tmp_path: Path) -> None:
    table = Table("a heading")
    assert "a heading" in run(Result([], table), folder=tmp_path).output


def test_every_command_says_on_a_line_of_its_group_what_it_does() -> None:
    """Whole, in a terminal of 80 columns."""
    groups = typer.main.get_command(parley)
    assert isinstance(groups, TyperGroup)
    names = [name for name, one in groups.commands.items() if hasattr(one, "commands")]
    assert {"users", "groups", "workers", "notice"} <= set(names)
    for words in ([], *([name] for name in names)):
        shown = CliRunner().invoke(parley, [*words, "--help"], terminal_width=80)
        assert "..." not in shown.stdout.replace("[ARGS]...", ""), shown.stdout
