"""JSON in pieces: its end, and what it says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.parsing.json_values import JsonString, JsonValue, is_object, read_string

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans())
def test_a_value_ends_where_it_does(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    for size in (1, 3, 1000):
        found = JsonValue()
        taken, rest = "", text + "}, more"
        while rest and not found.is_done:
            end = found.feed(rest[:size], 0)
            taken += rest[:end]
            rest = rest[end:]
        assert taken == text


def test_brackets_that_do_not_match_break_it() -> None:
    value = JsonValue()
    value.feed('{"a": [1}', 0)
    assert value.is_broken and not value.is_done


@given(st.text(), st.booleans())
def test_a_text_says_the_same_in_pieces(text: str, is_ascii: bool) -> None:
    inside = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
    string = JsonString()
    assert "".join(map(string.feed, inside)) + string.finish() == text


@pytest.mark.parametrize(
    ("inside", "says"),
    [(r"\\u12", "\\u12"), (r"\ud83d", "\ufffd"), (r"\ud83dx", "\ufffdx"), (r"\q", r"\q")],
)
def test_a_text_that_is_odd_says_something(inside: str, says: str) -> None:
    string = JsonString()
    assert "".join(map(string.feed, inside)) + string.finish() == says
    assert read_string(inside) == says


def test_arguments_are_an_object() -> None:
    assert is_object('{"a": 1}')
    for text in ("[1]", "", "{", "null", "[" * 100_000):
        assert not is_object(text)
