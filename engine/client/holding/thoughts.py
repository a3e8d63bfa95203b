"""`thought_tokens`: the tokens between which a model thinks, so that its thoughts can be ended.

A thought is ended by its mark, and that must be a token: what only spells a mark may be cut into
tokens in many ways, so nobody could tell from the tokens where a thought is over.
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
    kinds = [_marks_of(each, grammar, encode, end_token_ids) for each in fields]
    begun = None if thought is None else next(n for n, each in enumerate(fields) if each is thought)
    return ThoughtTokens(kinds, begun)


def _marks_of(
    field: Field,
    grammar: Grammar,
    encode: Callable[[str], list[int]],
    end_token_ids: Collection[int],
) -> ThoughtMarks:
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
    begins = [[ids[each]] if each in ids else encode(each) for each in pieces]
    return ThoughtMarks(list(itertools.chain(*begins)), list(ends))


def _refused(problem: str) -> ValidationError:
    return ValidationError(f"{PARAMETER} cannot be had: {problem}", PARAMETER, None)
