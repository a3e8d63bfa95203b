"""The terminal that tests look at shows what one would show."""

import pytest

from tests.end_to_end.clients.screen import Screen


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("123456", ["12345", "6"]),
        ("12345\r\n6", ["12345", "6"]),  # a full line is broken by what follows, once
        ("1234日", ["1234", "日"]),  # no half of a wide character
        ("\x1b[31mred\x1b[0m", ["red"]),
        ("one\x1b[1D\x1b[K", ["on"]),
        ("one\r\ntwo\x1b[A\r\x1b[J", [""]),
        ("one\x1b[?1049htwo\x1b[?1049l", ["one"]),
        ("\x1b[?7l1234567\x1b[?7h", ["12347"]),
        ("\x1b]0;a title\x07one", ["one"]),
    ],
)
def test_it_obeys_what_programs_write(written: str, lines: list[str]) -> None:
    screen = Screen(5, 3)
    for character in written:  # in any parts
        screen.write(character)
    assert screen.lines == lines


def test_what_scrolls_away_is_kept_and_what_no_longer_fits_is_gone() -> None:
    screen = Screen(5, 2)
    screen.write("one\r\ntwo\r\nthree")
    assert (screen.lines, screen.shown) == (["one", "two", "three"], ["two", "three"])
    screen.resize(3, 2)
    assert screen.shown == ["two", "thr"]


def test_it_fails_at_what_it_does_not_know() -> None:
    with pytest.raises(AssertionError, match="does not know"):
        Screen(5, 2).write("\x1b[5S")
