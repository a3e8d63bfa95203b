"""Stop strings, a sampling parameter: an answer ends where its text holds one. Nobody's wish."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.client.text.stop_strings import StopMatcher


def _expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """By definition: the first place where a stop string is complete ends the text."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def _run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        safe, stop = matcher.feed(piece)
        shown += safe
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("one STOP two", "STOP"),
        ("SSTOSTOPX", "STOP"),
        ("no such thing STO", "STOP"),
        ("STOP", "STOP"),
        ("caaab", "aab"),
        ("ababababac", "ababac"),
        ("family 👩‍👩‍👧‍👦!", "‍👧"),
    ],
)
def test_no_character_of_a_stop_string_is_shown_over_any_split(
    text: str, stop: str, include: bool
) -> None:
    expected = _expected(text, [stop], include)
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pieces = [text[:first], text[first:second], text[second:]]
            matcher, shown = StopMatcher([stop], include_in_output=include), ""
            for piece in pieces:
                safe, found = matcher.feed(piece)
                shown += safe
                assert expected[0].startswith(shown)
                if found is not None:
                    break
            assert (shown if found else shown + matcher.flush(), found) == expected


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
    include=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_of_several_stops_the_earliest_wins_in_any_pieces(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert _run(StopMatcher(stops, include_in_output=include), pieces) == _expected(
        text, stops, include
    )


def test_stop_that_completes_first_wins_and_ties_go_by_order() -> None:
    assert StopMatcher(["world!", "wor"]).feed("hello world!") == ("hello ", "wor")
    assert StopMatcher(["ab", "b"]).feed("xab") == ("x", "ab")
    assert StopMatcher(["b", "ab"]).feed("xab") == ("xa", "b")


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
@settings(max_examples=250, deadline=None)
def test_only_what_may_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for place, character in enumerate(text, 1):
        safe, stop = matcher.feed(character)
        if stop is not None:
            return
        shown += safe
        so_far = text[:place]
        held = max(
            (n for s in stops for n in range(1, len(s)) if so_far.endswith(s[:n])), default=0
        )
        assert shown == so_far[: len(so_far) - held]
