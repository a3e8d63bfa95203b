"""Prompts that are pooled, in the scheduler and the step loop: they take part as all others do."""

from array import array

import pytest

from engine.pooling import PoolingParams
from tests.engine.helpers.fakes import SteppedCore

POOLED = PoolingParams()
MEAN = PoolingParams(pooling_type="MEAN")


def numbers(core: SteppedCore, request_id: str) -> list[float]:
    end = core.end(request_id)
    assert (end.finish_reason, end.embedding is None) == ("stop", False)
    return array("f", end.embedding or b"").tolist()


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("pooling", [POOLED, MEAN])
def test_they_share_steps_with_answers_and_get_no_token(
    pooling: PoolingParams, runs_ahead: bool
) -> None:
    core = SteppedCore(runs_ahead=runs_ahead)
    core.add("answer", 3, max_tokens=9)
    core.add("pooled", 70, pooling=pooling)
    core.run()
    assert core.tokens("answer") == list(range(4, 13))
    assert core.tokens("pooled") == [] and numbers(core, "pooled") == [1, 70]
    assert any({"answer", "pooled"} <= step.keys() for step in core.model.steps)
    core.check_all_free()


def test_a_prompt_as_long_as_the_context_is_pooled_though_it_leaves_no_room_to_answer() -> None:
    core = SteppedCore(max_model_len=40)
    core.add("whole", 40, pooling=POOLED)
    core.add("too long", 41, pooling=POOLED)
    core.add("answer", 40)
    core.run()
    assert numbers(core, "whole") == [1, 40]
    for name in ("too long", "answer"):
        error = core.end(name).error
        assert error is not None and error[0] == "context_length_exceeded"


def test_a_prompt_that_fills_the_whole_cache_is_pooled() -> None:
    core = SteppedCore(num_blocks=5, max_model_len=200)
    core.add("r", 20, pooling=MEAN)
    core.run()
    assert numbers(core, "r") == [1, 20]


def test_a_deadline_ends_one_amid_its_prompt() -> None:
    core = SteppedCore(max_request_seconds=5.0)
    core.time = 1.0
    core.add("r", 100, pooling=POOLED)
    core.core.step()
    core.time = 7.0
    core.run()
    end = core.end("r")
    assert end.error is not None and end.error[0] == "request_timeout"
    assert end.embedding is None
    core.check_all_free()


def test_the_more_urgent_is_pooled_first() -> None:
    core = SteppedCore(scheduling_policy="priority", max_num_seqs=1)
    for name, priority in (("late", 5), ("early", 1)):
        core.add(name, 40, pooling=POOLED, priority=priority)
    core.run()
    assert list(dict.fromkeys(name for step in core.model.steps for name in step)) == [
        "early",
        "late",
    ]


def test_an_abort_while_the_last_step_runs_wins() -> None:
    core = SteppedCore()
    core.model.during_step = lambda: core.abort("r")
    core.add("r", 5, pooling=POOLED)
    core.run()
    assert (core.end("r").finish_reason, core.end("r").embedding) == ("abort", None)
    core.check_all_free()


def test_one_that_has_tokens_of_an_answer_is_refused() -> None:
    core = SteppedCore()
    core.add("r", 5, pooling=POOLED, resume_token_ids=[9], max_tokens=5)
    core.run()
    error = core.end("r").error
    assert error is not None and error[0] == "invalid_request"


def test_cached_blocks_are_read_for_the_last_token_only() -> None:
    core = SteppedCore()
    for name, pooling in (("first", POOLED), ("last", POOLED), ("mean", MEAN)):
        core.add(name, 30, pooling=pooling)
        core.run()
    cached = [core.end(name).num_cached_tokens for name in ("first", "last", "mean")]
    assert cached == [0, 28, 0]
