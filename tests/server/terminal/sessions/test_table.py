"""The operators' list in the terminal: what it shows, and what it never lets through."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from server.terminal.sessions.figures import duration
from server.terminal.sessions.table import session_table
from server.terminal.text import UNBOUNDED_WIDTH

HOSTILE = "\x1b]0;owned\x07 \x1b[2J\r\n\u202eevil\u2066 \x9b31m <script>[bold]x[/]"


def row(**changed: Any) -> dict[str, Any]:
    return {
        "id": "ses_" + "A" * 22,
        "user": {"id": "usr_1", "name": "Ada"},
        "title": "Harbours",
        "state": "in_progress",
        "queued": 0,
        "usage": {"input_tokens": 1, "output_tokens": 2},
        "viewers": 3,
        "response": {"replica": "w1", "tokens": 41, "tokens_per_s": 9.6, "age_ms": 65_000},
        **changed,
    }


def printed(rows: list[dict[str, Any]], chosen: str | None = None, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(session_table(rows, chosen, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_shows_user_title_worker_rate_viewers_and_age() -> None:
    line = printed([row()]).splitlines()[1]
    words = ("Ada", "Harbours", "w1", "in_progress", "41", "10", "3", "1 min 05 s")
    for word in (*words, "ses_" + "A" * 22):
        assert word in line


def long_row() -> dict[str, Any]:
    run = {"replica": "a-host-with-a-long-name-1-w", "tokens": 41, "tokens_per_s": 9.6}
    user = {"id": "usr_1", "name": "Ada Augusta King, Countess of Lovelace"}
    response = {**run, "age_ms": 65_000}
    return row(user=user, title="Harbours of " * 10, queued=12, response=response)


@pytest.mark.parametrize("width", [80, 86, 99, 109, 118, 144, 200])
def test_a_terminal_of_80_columns_or_more_has_readable_columns(width: int) -> None:
    heading, line = printed([long_row()], width=width).splitlines()
    assert "…" not in heading
    for words in ("Ada Augusta", "Harbours of", "in_progress +12", "ses_" + "A" * 22):
        assert words in line
    assert line.count("…") == 2 + ("worker" in heading)  # the user's, the title, the worker's


def test_what_matters_least_goes_first_where_a_terminal_is_narrow() -> None:
    def headings(width: int) -> str:
        return " ".join(printed([row()], width=width).splitlines()[0].split())

    assert headings(40) == "user id"
    assert headings(80) == "user title state id"
    assert headings(100) == "user title state tokens age id"
    assert headings(144) == "user title worker state tokens tokens/s viewers age id"


@pytest.mark.parametrize("width", [36, 40, 48, 60, 72])
def test_a_narrow_terminal_has_ids_that_can_be_copied(width: int) -> None:
    heading, line = printed([long_row()], width=width).splitlines()
    assert "ses_" + "A" * 22 in line and "Ada" in line
    assert len(line) <= width and "…" not in heading


def test_a_pipe_gets_every_word() -> None:
    longest = long_row()
    _, line = printed([longest], width=UNBOUNDED_WIDTH).splitlines()
    for words in (
        longest["user"]["name"],
        longest["title"].strip(),
        longest["response"]["replica"],
    ):
        assert words in line
    assert len(line) < 400


def test_an_idle_and_untitled_session_has_empty_places() -> None:
    text = printed([row(state="idle", response=None, title=None)])
    assert "(hidden)" in text and "idle" in text


def test_the_chosen_row_is_marked() -> None:
    assert "▸" in printed([row()], "ses_" + "A" * 22)
    assert "▸" not in printed([row()])


@pytest.mark.row("B60")
@pytest.mark.parametrize("place", ["title", "name", "replica"])
def test_nothing_that_a_terminal_would_obey_gets_through(place: str) -> None:
    hostile = row()
    if place == "title":
        hostile["title"] = HOSTILE
    elif place == "name":
        hostile["user"]["name"] = HOSTILE
    else:
        hostile["response"]["replica"] = HOSTILE
    text = printed([hostile])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert len(text.splitlines()) == 2  # it cannot break its line


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 s"), (59_999, "59 s"), (60_000, "1 min 00 s"), (3_660_000, "1 h 01 min")],
)
def test_a_duration_has_two_units_at_most(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
