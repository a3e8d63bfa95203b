"""Moments and spans of time as operators write them."""

import pytest
import typer

from server.terminal.times import day, moment_of, second, seconds_of

NOON_MS = 1_795_867_200_000  # 2026-11-28 12:00 UTC


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("4h", 14_400), (" 7 d ", 604_800)]
)
def test_a_span_is_a_number_with_its_unit(text: str, seconds: int) -> None:
    assert seconds_of(text, "--for") == seconds


@pytest.mark.parametrize("text", ["", "soon", "4", "-4h", "4 weeks", "1e3s", "9" * 400 + "d"])
def test_what_is_no_span_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no time such as 30m") as refused:
        seconds_of(text, "--for")
    assert refused.value.param_hint == "--for"


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("2h", NOON_MS - 7_200_000),
        ("2026-11-28", NOON_MS - 43_200_000),
        ("2026-11-28T12:00", NOON_MS),
        ("2026-11-28 13:00+01:00", NOON_MS),
        ("999999999d", 0),
        ("0001-01-01", 0),
    ],
)
def test_a_moment_is_so_long_ago_or_a_date_in_utc(text: str, moment_ms: int) -> None:
    assert moment_of(text, "--since", NOON_MS) == moment_ms


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12:00", ""])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no moment such as"):
        moment_of(text, "--until", NOON_MS)


def test_moments_are_shown_in_utc() -> None:
    assert day(NOON_MS) == "2026-11-28" and second(NOON_MS + 61_000) == "2026-11-28 12:01:01"
