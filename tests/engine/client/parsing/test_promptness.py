"""What is unambiguous leaves within one token, in every format: by an oracle of continuations.

What is certain of an answer that has come so far is what all of its continuations agree on. Of
those some dozens are tried: the end, each marker, what closes and what breaks a value, and what
other answers go on with. That is no less than is certain in truth, and so the test is rather too
strict than too mild. One token later the parser must have said all of it.
"""

import random
import re
from collections.abc import Iterator, Sequence

import pytest

from engine.client.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
)
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Grammar
from engine.client.parsing.parser import AnswerParser
from engine.client.parsing.response_template import read_response_template
from tests.engine.client.parsing.answers import (
    TOOLS,
    WRITTEN,
    Writer,
    new_seed,
    read,
    tokens_of,
)
from tests.engine.client.parsing.test_cuts import MARKERS, PARTS
from tests.engine.client.parsing.test_response_template import CASES

Atom = tuple[str, str]  # a kind, and a character, a name, or whether a call is valid
ENDS = (
    *("", " ", "\n", "x", '"', "\\", "}", "]", '"}', '"}}', '"]}', "0", ",", ": ", "null", "{"),
    *("```", "\n```", "; {", ">", "</", "<|", "é", "1}", "true}}"),
)
CLOSED = "</parameter>\n</function>\n</tool_call>"  # a tag alone may be part of a value
TAGS = (CLOSED, "<function=", "</function>", "<parameter=", "</parameter>")
LONGEST_END = 24
MAX_PLACES = 8  # where one end of the text is in others
NUM_OTHERS = 12  # rests of other answers


def atoms(events: Sequence[Event]) -> Iterator[Atom]:
    for event in events:
        match event:
            case TextDelta(delta):
                yield from (("text", character) for character in delta)
            case ReasoningDelta(delta):
                yield from (("thought", character) for character in delta)
            case CallBegin(_, _, name):
                yield "call", name
            case CallArguments(_, delta):
                yield from (("argument", character) for character in delta)
            case CallEnd(_, is_valid):
                yield "end", str(is_valid)


def common(rows: Sequence[Sequence[Atom]]) -> list[Atom]:
    """What all of them begin with."""
    found = []
    for each in zip(*rows, strict=False):
        if len(set(each)) > 1:
            break
        found.append(each[0])
    return found


def tokens(rng: random.Random, text: str) -> list[str]:
    longest, pieces = rng.choice((1, 2, 4, 8)), []
    while text:
        length = rng.randint(1, longest)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def check(
    grammar: Grammar,
    others: list[str],
    text: str,
    prompt: str,
    rng: random.Random,
    num_places: int,
) -> int:
    """How many atoms of arguments were said, some of them looked at. Raises AssertionError."""
    marks = [grammar.marks.mark(each) for each in MARKERS]
    rests = [other[rng.randint(0, len(other)) :] for other in others]
    continuations = [*ENDS, *marks, *PARTS, *rests]
    parser = AnswerParser(grammar, tools=TOOLS, prompt=prompt)
    pieces = tokens(rng, text)
    said: list[Atom] = []
    looked_at = set(rng.sample(range(len(pieces)), min(num_places, len(pieces))))
    for place, piece in enumerate(pieces):
        before = "".join(pieces[:place])
        said += atoms(parser.feed(piece))
        if place not in looked_at:
            continue
        rows = [
            list(atoms(read(grammar, [before + rest], prompt)))
            for rest in {
                text[len(before) :],
                *continuations,
                *_completed(before, others),
                *_completed(before, [f"{mark}x" for mark in (*marks, *TAGS)]),
            }
        ]
        certain = common(rows)
        if certain and certain[-1][0] == "end":
            del certain[-1]  # which may wait for the end of the object around the arguments
        assert certain == said[: len(certain)], (before, piece, certain[len(said) :])
    said += atoms(parser.finish())
    return sum(kind == "argument" for kind, _ in said)


def _completed(text: str, others: Sequence[str]) -> Iterator[str]:
    """How others went on after what this ends with."""
    for length in range(1, min(len(text), LONGEST_END) + 1):
        end = re.escape(text[-length:])
        places = [(other, found.end()) for other in others for found in re.finditer(end, other)]
        if not places:
            break
        yield from (other[place:] for other, place in places[:MAX_PLACES])


NUM_ANSWERS = [(1, 10), pytest.param((10, 30), marks=pytest.mark.slow)]  # and places in each


def write(rng: random.Random, grammar: Grammar, *, has_tokens: bool) -> list[str]:
    """Answers, of which the first one calls a tool."""
    while True:
        writer = Writer(rng, grammar, has_tokens=has_tokens)
        text = writer.write()
        if writer.arguments:
            break
    others = [Writer(rng, grammar, has_tokens=has_tokens).write() for _ in range(NUM_OTHERS)]
    return [text, *others]


@pytest.mark.parametrize("numbers", NUM_ANSWERS, ids=["few", "many"])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_certain_has_left_one_token_later(name: str, numbers: tuple[int, int]) -> None:
    rng, num_arguments = random.Random(f"{name}{new_seed()}"), 0
    for _ in range(numbers[0]):
        has_tokens = rng.random() < 0.6
        added = tokens_of(MARKERS, are_shown=rng.random() < 0.5) if has_tokens else ()
        grammar = Grammar(FORMATS[name], added)
        text, *others = write(rng, grammar, has_tokens=has_tokens)
        num_arguments += check(grammar, others, text, "", rng, numbers[1])
    assert num_arguments


@pytest.mark.parametrize("numbers", NUM_ANSWERS, ids=["few", "many"])
@pytest.mark.parametrize("name", CASES)
def test_so_it_is_by_a_response_template(name: str, numbers: tuple[int, int]) -> None:
    template, format_name, prompt = CASES[name]
    rng, num_arguments = random.Random(f"{name}{new_seed()}"), 0
    grammar, written_by = Grammar(read_response_template(template)), Grammar(FORMATS[format_name])
    for _ in range(numbers[0]):
        text, *others = write(rng, written_by, has_tokens=False)
        num_arguments += check(grammar, others, text, prompt, rng, numbers[1])
    assert num_arguments
