"""Tables in the terminal: whole where it is narrow, and text whoever wrote it."""

import io
import re

import pytest
from rich.console import Console

from server.terminal.tables import MAX_CHARACTERS, Cell, Table
from server.terminal.text import UNBOUNDED_WIDTH

HOSTILE = "\x1b]0;owned\x07 \x1b[2J\r\n\u202eevil\u2066 \x9b31m [bold]x[/]"


def printed(table: Table, width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(table.drawn(width))
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


def test_a_long_word_goes_on_below_and_what_is_copied_is_whole() -> None:
    table = Table("id", "name", "tokens", numbers=("tokens",), whole=("id",))
    table.add("usr_" + "1" * 10, "a" * 60, 1_234_567)
    lines = printed(table, width=40)
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("a") == 61  # and that of "name"
    assert lines[1].startswith("usr_1111111111 ") and lines[1].endswith("1234567")


def test_a_terminal_too_narrow_for_columns_has_lines_with_their_headings() -> None:
    table = Table("id", "name", "", whole=("id",))
    table.add("usr_" + "1" * 22, "Ada " * 10, None)
    table.add("usr_" + "2" * 22, "Bob", "disabled")
    lines = [line.split() for line in printed(table, width=35)]
    assert lines[0] == ["id", "usr_" + "1" * 22]
    assert lines[1] == ["name", *["Ada"] * 7] and lines[2] == ["Ada"] * 3
    assert lines[3:] == [[], ["id", "usr_" + "2" * 22], ["name", "Bob"], ["disabled"]]


def test_nobodys_words_fill_a_terminal_and_a_pipe_gets_all_of_them() -> None:
    table = Table("reason")
    table.add("漢" * 500)
    assert "".join(printed(table)).count("漢") == MAX_CHARACTERS
    assert "".join(printed(table, UNBOUNDED_WIDTH)).count("漢") == 500


def test_nothing_is_an_empty_place() -> None:
    table = Table("a", "b")
    table.add(None, 0)
    assert [cell.text for cell in table.rows[0]] == ["", "0"]
