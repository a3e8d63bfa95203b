"""Where a text is cut is said by the text alone, and nothing of it waits longer than a word."""

import random

import pytest

from server.api.responses.answer.pieces import LONGEST, OPENING, Pieces

TEXTS = [
    "",
    "H",
    "Hello, world! It's 12:30.\n\n```python\n    return foo(bar[0])\n```\n",
    "                                        forty spaces and a word",
    " " * 33,
    "x" * 70 + " " + "y" * 17 + "z",
    "Größe ist naïve Ελληνικά русский हिन्दी 한국어 말하다",
    "日本語の文章です。中文没有空格。ภาษาไทยไม่มีช่องว่าง",
    "👩‍👩‍👧‍👦 family \U0001f600\U0001f600 e\u0301",
    "tabs\t\tand \r\n ends  \n",
]


def pieces_of(*parts: str) -> list[str]:
    pieces = Pieces()
    found = [piece for part in parts for piece in pieces.add(part)]
    return found + pieces.end()


def cut(text: str, chance: random.Random) -> list[str]:
    places = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("text", TEXTS)
def test_any_cutting_of_a_text_gives_the_same_pieces(text: str) -> None:
    whole = pieces_of(text)
    assert "".join(whole) == text and "" not in whole
    assert pieces_of(*text) == whole
    chance = random.Random(7)
    for _ in range(200):
        assert pieces_of(*cut(text, chance)) == whole


def test_random_texts_are_cut_alike() -> None:
    chance = random.Random(11)
    for _ in range(300):
        text = "".join(chance.choices("ab  \n.é日", k=chance.randrange(90)))
        assert pieces_of(*cut(text, chance)) == pieces_of(text)


def test_the_first_characters_go_out_at_once() -> None:
    pieces = Pieces()
    assert pieces.add("Hel") == ["H", "e", "l"]
    assert pieces.add("lo wor") == ["l", "o", " ", "w", "o"]
    assert pieces.add("ld and") == ["rld"]
    assert pieces.end() == [" and"]


def test_no_more_than_a_word_waits() -> None:
    pieces = Pieces()
    text = "-" * OPENING + "a" * 15 + " b. " + " " * 40 + "日本"
    sent = 0
    for place, character in enumerate(text, 1):
        sent += len("".join(pieces.add(character)))
        assert place - sent < 2 * LONGEST
    assert sent == len(text)


def test_a_word_stands_with_the_space_before_it() -> None:
    words = pieces_of("-" * OPENING, "The cat sat: 12 mats.")
    assert words[OPENING:] == ["The", " cat", " sat", ":", " 12", " mats", "."]
