"""Pairs of texts, and the likeness of two embeddings."""

from typing import Any

import pytest

from engine.errors import ValidationError
from engine.faces.scores import pairs, similarity
from engine.outputs import OutputError
from engine.pooling import PoolingOutput, PoolingRequestOutput


def embedding(name: str, *numbers: float, **more: Any) -> PoolingRequestOutput:
    more = {"finish_reason": "stop"} | more
    return PoolingRequestOutput(name, PoolingOutput(list(numbers)), [1, 2], 16, True, **more)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a", "b", [("a", "b")]),
        ("a", ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a"], ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a", "b"], ["c", "d"], [("a", "c"), ("b", "d")]),
    ],
)
def test_one_text_goes_with_all_and_several_go_pair_by_pair(
    first: Any, second: Any, expected: list[tuple[str, str]]
) -> None:
    assert pairs(first, second) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [([], "a"), ("a", []), (["a", "b"], "c"), (["a", "b"], ["c", "d", "e", "f"]), ("a", [[1]])],
)
def test_other_numbers_of_texts_are_refused(first: Any, second: Any) -> None:
    with pytest.raises(ValidationError):
        pairs(first, second)


@pytest.mark.parametrize("length", [1.0, 5.0])  # which is 1 unless it is asked for as it is
def test_the_score_is_the_cosine(length: float) -> None:
    first = embedding("7", 0.6 * length, 0.8 * length)
    output = similarity(first, embedding("8", length, 0.0))
    assert output.outputs.score == pytest.approx(0.6)
    assert (output.request_id, output.num_cached_tokens) == ("7_8", 32)
    assert (output.prompt_token_ids, output.finish_reason) == ([1, 2, 1, 2], "stop")


def test_an_embedding_of_zeros_is_like_nothing() -> None:
    output = similarity(embedding("7", 0.0, 0.0), embedding("8", 1.0, 0.0))
    assert output.outputs.score == 0


def test_without_an_embedding_there_is_no_score() -> None:
    error = OutputError("request_timeout", "too late")
    failed = embedding("8", finish_reason="error", error=error)
    for output in (similarity(embedding("7", 1.0), failed), similarity(failed, failed)):
        assert (output.outputs.data, output.finish_reason, output.error) == ([], "error", error)
