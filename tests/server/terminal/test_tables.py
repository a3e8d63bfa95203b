"""Tables in the terminal: whole where it is narrow, and text whoever wrote it."""

import io
import re

import pytest
from rich.console import Console

from server.terminal.tables import Cell, Table

HOSTILE = "\x1b]0;owned\x07 \x1b[2J\r\n\u202eevil\u2066 \x9b31m [bold]x[/]"


def printed(table: Table, width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(table.drawn())
    return file.getvalue().splitlines()


@pytest.mark.row("B60")
def test_no_word_commands_a_terminal_or_breaks_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("name", "", title=HOSTILE)
    table.add(HOSTILE, Cell(HOSTILE, "red"))
    table.show()
    text = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert len(text.splitlines()) == 3 and text.count("[bold]x[/]") == 3


def test_a_long_word_goes_on_below_and_a_number_is_whole() -> None:
    table = Table("name", "tokens", numbers=("tokens",))
    table.add("a" * 100, 1_234_567)
    lines = printed(table, width=40)
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("a") == 101  # and that of "name"
    assert lines[1].endswith("1234567")


def test_nothing_is_an_empty_place() -> None:
    table = Table("a", "b")
    table.add(None, 0)
    assert [cell.text for cell in table.rows[0]] == ["", "0"]
