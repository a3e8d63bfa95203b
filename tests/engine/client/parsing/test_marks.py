"""Marked text: a token is a character, and what spells it is not."""

import regex

from engine.client.parsing.marks import AddedToken, Marks, is_mark

TOKENS = [
    AddedToken(7, "<think>", True),
    AddedToken(8, "<|end|>", False),
    AddedToken(9, "<|unused|>", False),
]


def test_tokens_that_the_format_knows_have_characters() -> None:
    marks = Marks(TOKENS, ["<think>", r"\s*<\|end\|>"])
    assert set(marks.characters) == {7, 8}
    assert all(map(is_mark, marks.characters.values()))


def test_markers_and_patterns_are_marked_alike() -> None:
    marks = Marks(TOKENS, ["<think>", r"\s*<\|end\|>"])
    end = marks.characters[8]
    assert marks.mark("<|end|>") == end
    assert marks.mark(r"\s*<\|end\|>") == rf"\s*{end}"
    assert marks.mark("<|unused|>") == "<|unused|>"


def test_plain_text_has_what_decoding_shows() -> None:
    marks = Marks(TOKENS, ["<think>", "<|end|>"])
    assert marks.plain("é" + marks.characters[7] + "a" + marks.characters[8]) == "é<think>a"


def test_a_longer_token_is_not_taken_for_a_shorter_one() -> None:
    marks = Marks([AddedToken(1, "<a>", True), AddedToken(2, "<a><b>", True)], ["<a><b>", "<a>"])
    assert marks.mark("<a><b><a>") == marks.characters[2] + marks.characters[1]


def test_a_token_is_none_of_the_characters_of_a_class() -> None:
    tokens = [AddedToken(7, "<a>", True)]
    marks = Marks(tokens, ["<a>"])
    (mark,) = marks.characters.values()
    for pattern, said, fits in (
        (r"<a>[^<]+", f"{mark}x", True),
        (r"<a>[^<]+", f"{mark}x{mark}", False),
        (r"<a>[^]<]+", f"{mark}x{mark}", False),
        (r"<a>[^-<]+", f"{mark}x", True),
        (r"\[^<a>", f"[{mark}", False),  # no class, but a bracket and the beginning of a text
        (r"\[<a>", f"[{mark}", True),
    ):
        found = regex.fullmatch(marks.mark_pattern(pattern), said)
        assert (found is not None) is fits, pattern
    assert Marks([], ["[^a]"]).mark_pattern("[^a]") == "[^a]"
