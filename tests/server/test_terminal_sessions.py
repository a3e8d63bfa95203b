"""The operators' list in the terminal: what it shows, and what it never lets through."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from server.terminal_sessions import duration, session_table
from server.terminal_text import printable

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


def printed(rows: list[dict[str, Any]], chosen: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(session_table(rows, chosen))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_shows_user_title_worker_rate_viewers_and_age() -> None:
    line = printed([row()]).splitlines()[1]
    words = ("Ada", "Harbours", "w1", "in_progress", "41", "10", "3", "1 min 05 s")
    for word in (*words, "ses_" + "A" * 22):
        assert word in line


def test_an_idle_and_untitled_session_has_empty_places() -> None:
    text = printed([row(state="idle", response=None, title=None)])
    assert "(hidden)" in text and "idle" in text


def test_the_chosen_row_is_marked() -> None:
    assert "▸" in printed([row()], "ses_" + "A" * 22)
    assert "▸" not in printed([row()])


@pytest.mark.parametrize("place", ["title", "name", "replica"])
def test_b60_nothing_that_a_terminal_would_obey_gets_through(place: str) -> None:
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


def test_printable_text_stays_as_it_is() -> None:
    assert printable("Größe 東京 🙂") == "Größe 東京 🙂"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 s"), (59_999, "59 s"), (60_000, "1 min 00 s"), (3_660_000, "1 h 01 min")],
)
def test_a_duration_has_two_units_at_most(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
