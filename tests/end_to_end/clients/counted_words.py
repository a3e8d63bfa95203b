"""What an engine of a storm may say: it counts, and a lie shows in the word itself.

After token n comes n + 1, at every engine. A wrong token is the right one plus `LIE`, which is
a token of the model like any other, so that no client can tell; but the oracle can, and still knows
which word belongs at each place. What follows a lie is what would have followed the truth.
"""

import re
from collections.abc import Sequence

FIRST_WORD, LAST_WORD = 3, 8_300  # that are asked for: no answer to them reaches `LIE`
LIE = 8_500
_WORD = re.compile(r"t(\d{5}) ")
_HALF_A_WORD = re.compile(r"t\d{0,5}\Z")


def right(token_id: int) -> int:
    """What belongs where this token is."""
    return token_id - LIE if token_id > LIE else token_id


def next_id(token_id: int) -> int:
    """What the model says after it."""
    return right(token_id) + 1


def question_of(ids: Sequence[int]) -> int:
    """How many of these are the question, if the others are its answer: none is lost, doubled or
    changed in that. A question is a word, or several where words were added to it.
    """
    number = len(ids)
    while number > 1 and right(ids[number - 1]) == next_id(ids[number - 2]):
        number -= 1
    return number


def undo_lies(text: str) -> str:
    """What belongs where this text is, up to its last whole word."""
    whole = _HALF_A_WORD.sub("", text)
    return _WORD.sub(lambda word: f"t{right(int(word[1])):05d} ", whole)


def count_lies(text: str) -> int:
    return sum(int(word) > LIE for word in _WORD.findall(text))
