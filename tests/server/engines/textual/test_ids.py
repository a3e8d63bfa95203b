"""Texts as numbers: the same text comes back, of any of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engines.client import ValidationError
from server.engines.textual.answers import GRAMMAR
from server.engines.textual.ids import CONVERSATION, decode, encode_answer, encode_prompt


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text())
def test_what_was_encoded_in_pieces_comes_back(first: str, second: str) -> None:
    for encode in (encode_prompt, encode_answer):
        assert decode([*encode(first), *encode(second)]) == first + second
        assert all(0 <= number < CONVERSATION for number in encode(first))


def test_marks_of_an_answer_come_back() -> None:
    mark = GRAMMAR.marks.mark("<call>")
    assert len(mark) == 1 and decode(encode_answer(f"a{mark}é")) == f"a{mark}é"


def test_a_prompt_counts_a_number_for_three_bytes() -> None:
    assert len(encode_prompt("abcdef")) == 2
    assert len(encode_prompt("abcdefg")) == 3
    assert len(encode_answer("a token ")) == 2


@pytest.mark.parametrize("numbers", [[-1], [1 << 32], [0x80], ["a"]])
def test_other_numbers_are_refused(numbers: list[int]) -> None:
    with pytest.raises(ValidationError):
        decode(numbers)
