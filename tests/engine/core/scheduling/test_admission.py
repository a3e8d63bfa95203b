"""Which requests the core takes: what can never be served, and what is too much, is refused."""

import pytest

from engine.grammar.thoughts import ThoughtMarks, ThoughtTokens
from engine.pooling import PoolingParams
from tests.engine.helpers.fakes import make_request, make_scheduler
from tests.engine.helpers.scheduler_run import Run

THOUGHTS = ThoughtTokens([ThoughtMarks([1], [5000])])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": []}, "invalid_request"),
        ({"prompt": [1, 5000]}, "invalid_request"),
        ({"prompt": [1], "allowed_token_ids": [5000]}, "invalid_request"),
        ({"prompt": [1] * 200}, "context_length_exceeded"),
        ({"prompt": [1], "thinking_token_budget": 1}, "invalid_request"),
        ({"prompt": [1], "thought_tokens": THOUGHTS}, "invalid_request"),
        ({"prompt": [1], "pooling": PoolingParams(task="classify")}, "unsupported_parameter"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_at_once(
    fields: dict[str, object], code: str
) -> None:
    run = Run(make_scheduler())
    run.add("a", **fields)
    assert run.ends() == {"a": "error"}
    assert run.outputs[-1].error is not None and run.outputs[-1].error[0] == code
    assert run.step() == {}


def test_a_full_queue_refuses() -> None:
    run = Run(make_scheduler(max_num_seqs=1, max_num_queued_reqs=1, max_num_queued_tokens=10))
    run.add("runs", max_tokens=9)
    run.step()
    run.add("waits")
    run.add("one too many")
    assert run.ends() == {"one too many": "error"}
    run = Run(make_scheduler(max_num_seqs=1, max_num_queued_tokens=10))
    run.add("runs", 6)
    run.add("waits", 3)
    run.add("one too many", 6)
    assert run.ends() == {"one too many": "error"}


def test_a_full_queue_takes_what_was_promised() -> None:
    run = Run(make_scheduler(max_num_seqs=1, max_num_queued_reqs=1, max_num_queued_tokens=5))
    for name in ("runs", "one too many", "promised", "promised, too"):
        run.add(name, max_tokens=1, is_admitted=name.startswith("promised"))
    assert run.ends() == {"one too many": "error"}
    for _ in range(3):
        run.step()
    assert run.ends()["promised"] == run.ends()["promised, too"] == "length"


def test_requests_that_arrive_together_are_not_refused_while_there_are_seats() -> None:
    run = Run(make_scheduler(max_num_seqs=3, max_num_queued_reqs=1))
    for name in ("a", "b", "c", "waits", "one too many"):
        run.add(name, max_tokens=2)
    assert run.ends() == {"one too many": "error"}
    run.step()
    run.add("one more")
    assert "one more" in run.ends()


def test_a_queue_that_waits_for_blocks_is_full_at_its_limit_whatever_seats_there_are() -> None:
    run = Run(make_scheduler(num_blocks=4, max_num_seqs=8, max_num_queued_reqs=1))
    run.add("runs", 12, max_tokens=9)
    run.step()
    run.add("waits for blocks", 12)
    run.step()
    run.add("one too many")
    assert run.ends() == {"one too many": "error"}


def test_an_idle_core_takes_a_prompt_longer_than_its_queue() -> None:
    run = Run(make_scheduler(max_num_queued_tokens=10))
    run.add("long", 30)
    assert run.ends() == {}


def test_waiting_too_long_is_an_error() -> None:
    run = Run(make_scheduler(max_num_seqs=1, max_queue_seconds=2.0))
    run.add("runs", max_tokens=9)
    run.add("waits", max_tokens=9)
    run.step()
    run.now += 2.5
    run.step()
    assert run.ends() == {"waits": "error"}


def test_an_id_in_use_is_not_taken_twice() -> None:
    scheduler = make_scheduler()
    assert scheduler.add("me", make_request("a"), 0.0) is not None
    assert scheduler.add("me", make_request("a"), 0.0) is None
    assert scheduler.add("you", make_request("a"), 0.0) is not None


def test_a_prompt_larger_than_the_cache_is_refused_at_once() -> None:
    run = Run(make_scheduler(num_blocks=5, max_model_len=100))
    run.add("too long", 20)
    run.add("fits", 19)
    assert run.ends() == {"too long": "error"}
    run.step()
    assert run.ends() == {"too long": "error", "fits": "length"}


def test_waiting_requests_hear_their_position_twice_a_second_at_most() -> None:
    run = Run(make_scheduler(max_num_seqs=1))
    for name in "abc":
        run.add(name, max_tokens=50)
    run.step()
    run.step()
    positions = [(o.request_id, o.queue_position) for o in run.outputs if o.request_id == "c"]
    assert positions == [("c", 1)]
    run.scheduler.abort("me", ["b"])
    run.now += 0.6
    run.step()
    waits = [(o.queue_position, o.num_tokens_ahead) for o in run.outputs if o.request_id == "c"]
    assert [position for position, _ in waits] == [1, 0]
    assert waits[0][1] > 0 == waits[1][1]
