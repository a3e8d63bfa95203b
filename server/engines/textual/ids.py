"""Text as numbers: the "token ids" of an engine that takes texts and gives texts.

The server counts prompts, hashes them, and stores answers by ids; of such an engine it knows none.
So a text is cut into pieces of a few bytes, each of which is one number. Prompts take three bytes
for one: few texts have more tokens than that, so what fits by this count fits into the engine, too.
Answers take four, about what a token has.
"""

import sys
from array import array
from collections.abc import Sequence

from server.engines.client import ValidationError

PROMPT_BYTES = 3
ANSWER_BYTES = 4
FILLER = b"\xff"  # fills a piece up; no byte of UTF-8
# What a prompt begins with that is a conversation and no text: four fillers, which say nothing.
CONVERSATION = 0xFFFFFFFF


def encode_prompt(text: str) -> list[int]:
    """The numbers of a text that an engine reads."""
    data = _bytes_of(text)
    data += FILLER * (-len(data) % PROMPT_BYTES)
    pieces = bytearray(FILLER * (len(data) // PROMPT_BYTES * ANSWER_BYTES))
    for place in range(PROMPT_BYTES):
        pieces[place::ANSWER_BYTES] = data[place::PROMPT_BYTES]
    return _numbers(bytes(pieces))


def encode_answer(text: str) -> list[int]:
    """The numbers of a text that an engine has written; it may have the marks of an answer."""
    data = _bytes_of(text)
    return _numbers(data + FILLER * (-len(data) % ANSWER_BYTES))


def decode(numbers: Sequence[int]) -> str:
    """The text of the one or the other. Raises `ValidationError` for numbers that are none."""
    try:
        pieces = array("I", numbers)
        if sys.byteorder == "big":
            pieces.byteswap()
        return pieces.tobytes().replace(FILLER, b"").decode("utf-8", "surrogatepass")
    except (OverflowError, TypeError, UnicodeDecodeError) as error:
        problem = "these are no numbers of a text, as this engine has them"
        raise ValidationError(problem, "prompt", None) from error


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _numbers(pieces: bytes) -> list[int]:
    numbers = array("I")
    numbers.frombytes(pieces)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
