"""What a client on another machine may say at once."""

import msgspec
import pytest

from engine.far.sizes import MAX_BYTES, MAX_EXTRA_ARGS_BYTES, MAX_OTHER_BYTES, check_size
from engine.grammar.params import MAX_GRAMMAR_BYTES, StructuredOutputsParams
from engine.ipc import Abort, AddRequest, Message, Utility, encode
from engine.sampling_params import SamplingParams


def request(num_ids: int = 1, **params: object) -> AddRequest:
    given = SamplingParams(seed=1, **params)  # type: ignore[arg-type]  # of any kind
    return AddRequest("r", [100_000] * num_ids, given, 0.0, resume_token_ids=[70_000] * num_ids)


GRAMMAR = StructuredOutputsParams(regex="x" * (MAX_GRAMMAR_BYTES - 10))


@pytest.mark.parametrize(
    "message",
    [
        request(200_000),
        request(100, structured_outputs=GRAMMAR),
        request(extra_args={"a": [0] * (MAX_EXTRA_ARGS_BYTES - 100)}),
        Abort([f"resp_{number:060}-0123abcd" for number in range(1000)]),
    ],
    ids=["ids", "grammar", "extra-args", "aborts"],
)
def test_what_answers_need_may_be_said(message: Message) -> None:
    check_size(encode(message))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (request(MAX_BYTES // 10 + 1), "at most 2097152"),
        (request(extra_args={"a": [[]] * MAX_EXTRA_ARGS_BYTES}), "extra_args have at most"),
        (request(stop=["x" * MAX_OTHER_BYTES]), "besides token ids"),
        (Utility(1, "metrics", [[]] * MAX_OTHER_BYTES), "besides token ids"),
        (Abort(["x" * MAX_OTHER_BYTES]), "besides token ids"),
    ],
    ids=["ids", "extra-args", "params", "utility", "aborts"],
)
def test_what_takes_long_to_read_may_not(message: Message, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_size(encode(message))


@pytest.mark.parametrize(
    "garbage", [["add"], ["add", "r", [], []], [], ["add", 1, 2, [None] * 100]], ids=str
)
def test_what_is_no_message_is_left_to_its_reader(garbage: list[object]) -> None:
    check_size(msgspec.msgpack.encode([*garbage, "x" * MAX_EXTRA_ARGS_BYTES]))
