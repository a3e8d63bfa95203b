"""Markers in a text that arrives in pieces."""

import random

import pytest

from engine.client.parsing.anchors import MAX_PENDING, Anchor, Until, Watch

WATCHES = {
    "texts": [Anchor(("<a>", "<ab>")), Anchor(("<ab",))],
    "pattern": [Anchor(pattern=r"\s*<a(?:b+)?>?")],
    "patterns": [Anchor(pattern="xab?y|ab"), Anchor(pattern=r"<(?P<name>[ab]+)>")],
    "both": [Anchor(("ab",)), Anchor(pattern=r"a(?:bx)?")],
}


def _find(watch: Watch, pieces: list[str]) -> list[tuple[str, int]]:
    """All markers, and the texts between them, as -1."""
    text, at = "", 0
    found: list[tuple[str, int]] = []

    def look(is_end: bool) -> None:
        nonlocal at
        while True:
            match, pending = watch.look(text, at, is_end=is_end)
            end = pending if match is None else match.start
            found.append((text[at:end], -1))
            at = end
            if match is None:
                return
            found.append((text[match.start : match.end], match.number))
            at = match.end

    for piece in pieces:
        text += piece
        look(False)
    look(True)
    return _merged(found)


def _merged(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    merged: list[tuple[str, int]] = []
    for text, number in found:
        if number == -1 and merged and merged[-1][1] == -1:
            merged[-1] = (merged[-1][0] + text, -1)
        elif text:
            merged.append((text, number))
    return merged


@pytest.mark.parametrize("name", WATCHES)
def test_the_same_markers_are_found_however_the_text_is_cut(name: str) -> None:
    watch = Watch(WATCHES[name])
    num_found = 0
    for seed in range(300):
        rng = random.Random(seed)
        bits = ("<", "a", "b", ">", " ", "x", "y", "<a>", "<ab>", "xab", " <a")
        text = "".join(rng.choices(bits, k=8))
        whole = _find(watch, [text])
        num_found += sum(number >= 0 for _, number in whole)
        assert _find(watch, list(text)) == whole, text
        cut = rng.randint(0, len(text))
        assert _find(watch, [text[:cut], text[cut:]]) == whole, (text, cut)
    assert num_found > 100


def test_the_longest_of_the_earliest_counts() -> None:
    found, _ = Watch([Anchor(("<a",)), Anchor(("<ab>",))]).look("x<ab>", 0, is_end=False)
    assert found is not None and found[:3] == (1, 5, 1)


def test_a_text_that_nothing_can_make_longer_is_found_at_once() -> None:
    found, _ = Watch([Anchor(("<a>",))]).look("x<a>", 0, is_end=False)
    assert found is not None


def test_a_pattern_names_what_it_has_found() -> None:
    found, _ = Watch([Anchor(pattern="<(?P<name>[a-z]+)>")]).look("<of>x", 0, is_end=False)
    assert found is not None and found.captures == {"name": "of"}


def test_a_pattern_holds_back_no_more_than_it_may() -> None:
    found, pending = Watch([Anchor(pattern=r"\s*<a>")]).look(" " * 1000, 0, is_end=False)
    assert (found, pending) == (None, 1000 - MAX_PENDING)


def test_until_gives_out_what_is_certain() -> None:
    until = Until(["</a>"])
    assert until.feed("one <", 0) == ("one ", 5, "")
    assert until.feed("/b></", 0) == ("</b>", 5, "")
    assert until.feed("a>two", 0) == ("", 2, "</a>")
