"""Which of an engine's words become a part of an answer."""

from typing import Any

import msgspec
import pytest

from engine.grammar.params import StructuredOutputsParams
from engine.ipc import AddRequest, SequenceOutput
from engine.sampling_params import SamplingParams
from server.engines.remote.answer import OpenAnswer
from server.engines.remote.dialects.dialect import Step
from server.engines.remote.wire.problems import Lie

PROMPT = [5, 6, 7]
END = 2


def answer(*resumed: int, max_model_len: int = 100, **params: Any) -> OpenAnswer:
    given = SamplingParams(**{"max_tokens": 5, "seed": 1, **params})
    request = AddRequest("r", PROMPT, given, 0.0, resume_token_ids=list(resumed))
    found = OpenAnswer(request, stop_ids=[END], vocab_size=50, max_model_len=max_model_len)
    found.begin_try("first")
    return found


def took(found: OpenAnswer, *ids: int, reason: str | None = None) -> SequenceOutput:
    return found.take(Step(list(ids), reason))


def test_tokens_are_handed_on_as_they_come() -> None:
    found = answer()
    outputs = [took(found, 10), took(found, 11, 12), took(found, 13, 14, reason="length")]
    assert [output.new_token_ids for output in outputs] == [[10], [11, 12], [13, 14]]
    assert [output.finish_reason for output in outputs] == [None, None, "length"]
    assert outputs[0].scheduled_ts == outputs[-1].scheduled_ts > 0


@pytest.mark.parametrize(
    ("params", "ids", "taken", "reason"),
    [
        ({}, [10, END, 11], [10, END], "stop"),
        ({"ignore_eos": True}, [10, END, 11], [10, END, 11], None),
        ({"stop_token_ids": [11]}, [10, 11, 12], [10, 11], "stop"),
        ({"min_tokens": 3}, [END, 10, END, 11], [END, 10, END], "stop"),
        ({}, [10, 11, 12, 13, 14, 15, 16], [10, 11, 12, 13, 14], "length"),
        ({}, [10, 11, 12, 13, END, 15], [10, 11, 12, 13, END], "stop"),
        ({"max_tokens": None}, [10] * 98, [10] * 97, "length"),
    ],
)
def test_an_answer_ends_where_it_must_whatever_the_engine_says(
    params: dict[str, Any], ids: list[int], taken: list[int], reason: str | None
) -> None:
    output = took(answer(**params), *ids)
    assert (output.new_token_ids, output.finish_reason) == (taken, reason)


def test_a_limit_that_is_not_reached_is_none() -> None:
    found = answer()
    output = took(found, 10, 11, reason="length")
    assert (output.new_token_ids, output.finish_reason) == ([10, 11], None)
    assert found.begin_try("second").resume_token_ids == [10, 11]
    assert took(found, 12, 13, 14, reason="length").finish_reason == "length"


def test_who_is_at_the_end_of_its_context_or_begins_a_form_anew_is_believed() -> None:
    almost_full = answer(max_model_len=20, max_tokens=None)
    assert took(almost_full, 10, reason="length").finish_reason == "length"
    held = answer(structured_outputs=StructuredOutputsParams(json={}))
    assert took(held, 10, reason="length").finish_reason == "length"


def test_only_a_stop_of_its_own_is_its_reason() -> None:
    assert took(answer(stop_token_ids=[11]), 11).stop_reason == 11
    assert took(answer(), END).stop_reason is None


@pytest.mark.parametrize("wrong", [-1, 50, 1 << 40])
def test_ids_that_the_model_has_not_are_a_lie(wrong: int) -> None:
    found = answer()
    took(found, 10)
    with pytest.raises(Lie, match="ids that the model has not"):
        took(found, 11, wrong)
    assert found.token_ids == [10]


def test_a_prompt_of_another_length_is_a_lie() -> None:
    found = answer(10, 11)
    assert found.take(Step([12], num_prompt_tokens=5)).new_token_ids == [12]
    found.begin_try("second")
    with pytest.raises(Lie, match="it has read 5 tokens, and was sent 6"):
        found.take(Step([13], num_prompt_tokens=5))


def test_the_next_try_is_asked_for_what_is_left() -> None:
    found = answer(10)
    took(found, 11, 12)
    rest = found.begin_try("second")
    assert (rest.prompt_token_ids, rest.resume_token_ids) == (PROMPT, [10, 11, 12])
    assert (found.num_remaining, found.name) == (2, "second")


def test_only_a_new_token_makes_tries_count_anew() -> None:
    found = answer()
    assert found.num_tries_in_vain == 1
    found.take(Step(num_computed_tokens=3))
    found.begin_try("second")
    assert found.num_tries_in_vain == 2
    took(found, 10)
    assert found.num_tries_in_vain == 0


@pytest.mark.parametrize(
    ("resumed", "params", "reason"),
    [
        ([], {}, None),
        ([10, END], {}, "stop"),
        ([10, END], {"min_tokens": 3}, None),
        ([10, 11, 12, 13, 14], {}, "length"),
        ([10], {"stop_token_ids": [10]}, "stop"),
    ],
)
def test_what_was_shown_already_may_have_been_all(
    resumed: list[int], params: dict[str, Any], reason: str | None
) -> None:
    assert answer(*resumed, **params).end_of_resumed() == reason


@pytest.mark.parametrize(("wrong", "rank"), [(-1, 2), (50, 2), (1 << 40, 2), (10, 1 << 70)])
def test_logprobs_of_what_is_no_token_are_a_lie(wrong: int, rank: int) -> None:
    with pytest.raises(Lie, match=r"logprobs of tokens|ranks that no token has"):
        answer().take(Step([10], logprobs=[[(10, -0.5, 1), (wrong, -1.5, rank)]]))


def test_logprobs_are_sent_as_a_core_sends_them() -> None:
    step = Step([10, 11], logprobs=[[(10, -0.5, 1)], [(11, -1.0, 2)]])
    output = answer(max_tokens=1, logprobs=0).take(step)
    assert output.logprobs is not None
    assert [msgspec.msgpack.decode(each) for each in output.logprobs] == [[[10, -0.5, 1]]]


def test_what_a_later_try_finds_in_a_cache_is_no_part_of_the_prompts_price() -> None:
    found = answer()
    assert found.take(Step([10], num_cached_tokens=2)).num_cached_tokens == 2
    found.begin_try("second")
    assert found.take(Step([11], num_cached_tokens=4)).num_cached_tokens == 2


def test_what_it_found_in_its_cache_may_be_told_with_the_last_token() -> None:
    found = answer()
    assert found.take(Step([10])).num_cached_tokens == 0
    assert found.take(Step([11], num_cached_tokens=2)).num_cached_tokens == 2
