import pytest

from engine.errors import ValidationError
from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens


def test_each_kind_begins_and_ends_with_tokens() -> None:
    ThoughtMarks([1], [2, 3])
    for begin, ends in (([], [2]), ([1], [])):
        with pytest.raises(ValidationError, match="thought_tokens"):
            ThoughtMarks(begin, ends)


def test_what_the_prompt_has_begun_is_one_of_them() -> None:
    kinds = [ThoughtMarks([1], [2])]
    ThoughtTokens(kinds, 0)
    for begun in (-1, 1):
        with pytest.raises(ValidationError, match="begun"):
            ThoughtTokens(kinds, begun)
