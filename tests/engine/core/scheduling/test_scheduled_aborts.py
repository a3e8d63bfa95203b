"""Aborts at the scheduler: blocks, ids and prefixes in every state, and no token too many.

How an abort gets here is in tests/engine/client/requests/test_client_aborts.py; one that meets a
step which runs, in tests/engine/core/test_step_loop.py.
"""

import pytest

from tests.engine.helpers.fakes import FakeModel, make_request, make_scheduler
from tests.engine.helpers.scheduler_run import Run


def test_aborts_are_counted_apart_from_stop_strings() -> None:
    scheduler = make_scheduler()
    for name in ("stopped", "aborted"):
        scheduler.add("me", make_request(name), 0.0)
    scheduler.abort("me", ["stopped"], "stop")
    scheduler.abort("me", ["aborted"])
    assert scheduler.totals.aborts == 1


def test_an_abort_while_waiting_ends_without_a_token_and_touches_no_block() -> None:
    run = Run(make_scheduler(num_blocks=8, max_num_seqs=1))
    run.add("runs", 8, max_tokens=9)
    run.add("waits", 8, max_tokens=9)
    run.step()
    before = run.scheduler.blocks.num_free
    run.scheduler.abort("me", ["waits"])
    assert run.ends() == {"waits": "abort"}
    assert run.tokens("waits") == []
    assert run.scheduler.blocks.num_free == before
    assert run.outputs[-1].num_cached_tokens == 0


@pytest.mark.parametrize("state", ["waiting", "prefill", "running", "preempted"])
def test_an_abort_frees_every_block_from_every_state_and_its_id_at_once(state: str) -> None:
    run = Run(make_scheduler(num_blocks=16, max_num_batched_tokens=8))
    run.add("a", 12, max_tokens=40)
    if state != "waiting":
        run.step()
    if state in ("running", "preempted"):
        run.step()
    if state == "preempted":
        run.scheduler.seats.preempt(run.scheduler.running[0])
    (sequence,) = run.scheduler.sequences.values()
    run.scheduler.abort("me", ["a", "a", "unknown", ""])
    run.scheduler.abort("me", ["a"])
    assert run.scheduler.finish(sequence, "length") is None
    assert run.ends() == {"a": "abort"}
    assert run.scheduler.blocks.num_free == 16
    run.add("a", max_tokens=1)  # the id is free again
    run.step()
    run.scheduler.check_integrity()


def test_ids_are_compared_whole_and_per_client() -> None:
    run = Run(make_scheduler())
    run.add("r1")
    run.add("r10")
    run.scheduler.abort("me", ["r1", ""])
    run.scheduler.abort("you", ["r10"])
    assert [s.request_id for s in run.scheduler.waiting] == ["r10"]


def test_aborted_waiting_requests_cost_no_forward_pass() -> None:
    run = Run(make_scheduler(max_num_seqs=1))
    for name in "abcdef":
        run.add(name, max_tokens=3)
    run.step()
    run.scheduler.abort("me", list("bcde"))
    assert run.step() == {"a": 1}
    for _ in range(9):
        run.step()
    assert {name for step in run.model.steps for name in step} == {"a", "f"}
    assert len(run.model.steps) == 6  # three tokens each


def test_blocks_released_while_a_step_runs_are_free_when_it_has_ended() -> None:
    scheduler = make_scheduler(num_blocks=8)
    scheduler.add("me", make_request("a", 14), 0.0)
    scheduled = scheduler.schedule(0.0)
    scheduler.abort("me", ["a"])
    assert (scheduler.blocks.num_free, scheduler.blocks.num_soon_free) == (4, 4)
    scheduler.check_integrity()
    scheduler.update(scheduled, FakeModel().execute(scheduled), 0.0)
    assert (scheduler.blocks.num_free, scheduler.blocks.num_soon_free) == (8, 0)


def test_a_batch_holds_only_what_the_request_map_holds() -> None:
    run = Run(make_scheduler(num_blocks=12, max_num_batched_tokens=6))
    for number in range(8):
        run.add(f"r{number}", 6, max_tokens=2 + number)
    sizes = set()
    while run.scheduler.sequences:
        scheduled = run.scheduler.schedule(run.now)
        here = list(run.scheduler.sequences.values())
        assert all(item.sequence in here for item in scheduled)
        assert len({id(item.sequence) for item in scheduled}) == len(scheduled)
        run.scheduler.update(scheduled, run.model.execute(scheduled), run.now)
        run.scheduler.abort("me", [f"r{len(run.model.steps)}"])  # sizes shrink in between
        sizes.add(len(scheduled))
    assert len(sizes) > 2


def test_after_a_stop_the_next_turn_finds_its_prefix() -> None:
    for num_prompt, num_steps in [(10, 8), (33, 1), (40, 25), (16, 17), (5, 4)]:
        run = Run(make_scheduler(block_size=16, max_num_batched_tokens=64))
        run.add("a", num_prompt, max_tokens=100)
        for _ in range(num_steps):
            run.step()
        partial = run.tokens("a")
        run.scheduler.abort("me", ["a"])
        run.add("b", prompt=[*range(1, num_prompt + 1), *partial, 500, 501], max_tokens=1)
        run.step()
        (end,) = [o for o in run.outputs if o.request_id == "b" and o.finish_reason]
        assert end.num_cached_tokens >= 16 * ((num_prompt + len(partial) - 1) // 16)


def test_a_dead_clients_requests_end_without_a_word() -> None:
    run = Run(make_scheduler())
    run.add("a")
    run.scheduler.add("you", make_request("a"), 0.0)
    run.step()
    run.scheduler.drop_client("me")
    assert list(run.scheduler.sequences) == [("you", "a")]
    assert "me" not in run.scheduler.take_outputs()
