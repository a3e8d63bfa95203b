"""`thought_tokens`: the tokens between which a model thinks, so that its thoughts can be ended.

A thought is ended by its mark, and that must be a token: it has to come at once, and be found
wherever the model writes it by itself. What begins a thought must have a token; a word beside that,
as the name of a channel, is found in any tokens that spell it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection

from engine.client.holding.spelling import spelling_of
from engine.client.parsing.grammar import Field, Grammar
from engine.client.parsing.marks import MARK
from engine.errors import ValidationError
from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens

PARAMETER = "thinking_token_budget"
MAX_WAYS = 256  # to write the beginning of a thought


def thought_tokens(
    grammar: Grammar,
    encode: Callable[[str], list[int]],
    *,
    thought: Field | None = None,
    end_token_ids: Collection[int] = (),
) -> ThoughtTokens:
    """Of an answer in which the prompt has begun this thought, or none.

    `encode` gives the tokens of a text, and `end_token_ids` end an answer. Raises
    `ValidationError`, which says why the thoughts of this model cannot be ended.
    """
    format_ = grammar.format
    fields = [each for each in (*format_.fields, format_.implicit) if each.role == "reasoning"]
    if not fields:
        raise _refused(f"the model's format, {format_.name}, has no thoughts")
    kinds: list[ThoughtMarks] = []
    begun = None
    for field in fields:
        if field is thought:
            begun = len(kinds)
        kinds += _marks_of(field, grammar, encode, end_token_ids)
    return ThoughtTokens(kinds, begun)


def _marks_of(
    field: Field,
    grammar: Grammar,
    encode: Callable[[str], list[int]],
    end_token_ids: Collection[int],
) -> list[ThoughtMarks]:
    """One for each way to begin it."""
    marks = grammar.marks
    ids = {character: token_id for token_id, character in marks.characters.items()}
    begin, end, *_ = spelling_of(field, grammar.format)
    if not begin or not end:
        raise _refused("the model's thoughts are begun or ended as no text says")
    forced = ids.get(marks.mark(end))
    if forced is None:
        raise _refused(f"{end!r}, which ends the model's thoughts, is no token of its vocabulary")
    if forced in end_token_ids:
        raise _refused(f"{end!r}, which ends the model's thoughts, also ends its answers")
    others = [] if field.ends is None else [ids.get(marks.mark(each)) for each in field.ends.texts]
    ends = dict.fromkeys([forced, *(each for each in others if each is not None)])
    pieces = [each for each in re.split(f"({MARK.pattern})", marks.mark(begin)) if each]
    if not any(each in ids for each in pieces):
        raise _refused(f"{begin!r}, which begins the model's thoughts, is no token")
    ways = [[(ids[each],)] if each in ids else _ways(each, encode) for each in pieces]
    begins = itertools.islice(itertools.product(*ways), MAX_WAYS)
    return [ThoughtMarks(list(itertools.chain(*each)), list(ends)) for each in begins]


def _ways(text: str, encode: Callable[[str], list[int]]) -> list[tuple[int, ...]]:
    """How a text may be cut into tokens; first as it is without a model."""
    found: list[list[tuple[int, ...]]] = [[()]]  # of its beginnings, by their lengths
    for end in range(1, len(text) + 1):
        cuts = [(start, encode(text[start:end])) for start in range(end)]
        single = [(start, ids[0]) for start, ids in cuts if len(ids) == 1]
        ways = [(*before, token) for start, token in single for before in found[start]]
        found.append(ways[:MAX_WAYS])
    return list(dict.fromkeys([tuple(encode(text)), *found[-1]]))


def _refused(problem: str) -> ValidationError:
    return ValidationError(f"{PARAMETER} cannot be had: {problem}", PARAMETER, None)
