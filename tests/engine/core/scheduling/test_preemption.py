"""Too few blocks or seats: who gives way, who never does, and that nothing is lost by it."""

import random
from typing import Any

import pytest

from tests.engine.helpers.fakes import make_scheduler
from tests.engine.helpers.scheduler_run import Run


def test_blocks_running_out_preempts_the_latest_and_changes_no_token() -> None:
    run = Run(make_scheduler(num_blocks=8))
    for name in "ab":
        run.add(name, 8, max_tokens=12)
    while run.scheduler.sequences:
        run.step()
    assert run.scheduler.totals.preemptions > 0
    assert run.tokens("a") == run.tokens("b") == list(range(9, 21))
    last = {o.request_id: o for o in run.outputs if o.finish_reason}
    assert last["a"].num_preemptions == 0 < last["b"].num_preemptions
    assert run.scheduler.blocks.num_free == 8


def test_a_preempted_request_keeps_its_place_before_later_ones() -> None:
    run = Run(make_scheduler(num_blocks=8))
    for name in "abc":
        run.add(name, 8, max_tokens=12)
    while run.scheduler.sequences:
        run.step()
        waiting = [s.request_id for s in run.scheduler.waiting]
        assert waiting == sorted(waiting)


def make_growing_run(num_blocks: int, names: str) -> Run:
    """All of them hold three full blocks of four tokens, and one token more that has none."""
    run = Run(make_scheduler(num_blocks=num_blocks))
    for number, name in enumerate(names):
        run.add(name, prompt=[100 * number + i for i in range(1, 8)], max_tokens=30)
    for _ in range(6):
        run.step()
    assert [s.num_tokens for s in run.scheduler.running] == [13] * len(names)
    return run


def test_one_set_of_victims_makes_room_for_all_decodes_of_a_step() -> None:
    run = make_growing_run(13, "abcd")
    assert run.scheduler.blocks.num_free == 1
    assert list(run.step()) == ["a", "b", "c"]  # d alone gives three blocks for three
    assert run.scheduler.totals.preemptions == 1


def test_blocks_that_will_soon_be_free_are_awaited_before_another_is_preempted() -> None:
    run = make_growing_run(10, "abc")
    run.scheduler.blocks.start_step()  # as if one were in flight
    run.scheduler.abort("me", ["c"])
    blocks = run.scheduler.blocks
    assert (blocks.num_free, blocks.num_soon_free) == (1, 3)
    assert run.step() == {"a": 1}  # b waits, and keeps its blocks; this ended the step in flight
    assert run.step() == {"a": 1, "b": 1}
    blocks.end_step()
    assert run.scheduler.totals.preemptions == 0


def test_the_oldest_is_never_a_victim_and_no_two_preempt_each_other() -> None:
    run = Run(make_scheduler(num_blocks=12, max_model_len=48))
    names = [f"r{number}" for number in range(8)]
    for number, name in enumerate(names):
        run.add(name, prompt=[10 * number + 1] * 6, max_tokens=40)
    while run.scheduler.sequences:
        oldest = min(run.scheduler.sequences.values(), key=lambda sequence: sequence.order)
        num_preemptions = oldest.num_preemptions
        run.step()
        assert oldest.num_preemptions == num_preemptions
    ends = [output for output in run.outputs if output.finish_reason == "length"]
    assert len(ends) == 8
    # Who was preempted comes back only when there is more room, so not again and again.
    assert max(output.num_preemptions for output in ends) <= 3
    assert 0 < run.scheduler.totals.preemptions < 16


def crowd(run: Run, user: str, count: int, first: int, **fields: Any) -> list[str]:
    """Requests of one user whose prompts share nothing; their names."""
    names = [f"{user}{number}" for number in range(count)]
    for number, name in enumerate(names, first):
        run.add(name, prompt=[10 * number + 1] * 6, cache_salt=user, **fields)
    return names


def finish_all(run: Run) -> dict[str, list[int]]:
    """Step to the end; the tokens of each request."""
    names = [sequence.request_id for sequence in run.scheduler.sequences.values()]
    while run.scheduler.sequences:
        run.step()
    run.scheduler.check_idle()
    return {name: run.tokens(name) for name in names}


@pytest.mark.row("P14")
def test_another_user_gets_a_seat_at_once_and_nothing_is_lost() -> None:
    run = Run(make_scheduler(max_num_seqs=4))
    crowd(run, "a", 8, 0, max_tokens=20)
    for _ in range(5):
        run.step()
    crowd(run, "b", 1, 20, max_tokens=20)
    assert "b0" in run.step()
    running = {sequence.request_id for sequence in run.scheduler.running}
    assert running == {"a0", "a1", "a2", "a3", "b0"}
    texts = finish_all(run)
    assert len(texts) == 9
    assert all(len(tokens) == 20 for tokens in texts.values())
    assert run.scheduler.totals.preemptions == 0


@pytest.mark.row("P14")
def test_when_all_seats_are_taken_as_many_give_way_at_once_as_arrive() -> None:
    run = Run(make_scheduler(max_num_seqs=4))
    crowd(run, "a", 5, 0, max_tokens=20)
    crowd(run, "b", 5, 10, max_tokens=20)
    for _ in range(4):
        run.step()
    assert len(run.scheduler.running) == 8
    crowd(run, "c", 4, 20, max_tokens=20)
    assert {"c0", "c1"} <= run.step().keys()
    users = [sequence.cache_salt for sequence in run.scheduler.running]
    assert sorted(users) == ["a"] * 3 + ["b"] * 3 + ["c"] * 2
    texts = finish_all(run)
    assert len(texts) == 14
    assert all(len(tokens) == 20 for tokens in texts.values())
    assert run.scheduler.totals.preemptions == 2


@pytest.mark.row("P14")
def test_nobody_keeps_more_than_half_of_the_blocks_from_others() -> None:
    run = Run(make_scheduler(num_blocks=16, max_model_len=48))
    crowd(run, "a", 4, 0, max_tokens=10)  # four blocks each, in the end
    for _ in range(4):
        run.step()
    crowd(run, "b", 2, 20, max_tokens=10)
    for _ in range(3):
        run.step()
    assert {sequence.cache_salt for sequence in run.scheduler.running} == {"a", "b"}
    assert all(len(tokens) == 10 for tokens in finish_all(run).values())


@pytest.mark.row("P14")
def test_a_user_with_half_of_the_blocks_loses_nothing_and_the_last_one_stays() -> None:
    run = Run(make_scheduler(max_num_seqs=2))
    crowd(run, "a", 1, 0, max_tokens=20)
    crowd(run, "b", 2, 5, max_tokens=20)
    crowd(run, "c", 1, 9, max_tokens=20)
    finish_all(run)
    assert run.scheduler.totals.preemptions == 0


@pytest.mark.row("P14")
def test_no_request_gives_way_to_a_less_urgent_one() -> None:
    run = Run(make_scheduler(scheduling_policy="priority", max_num_seqs=2))
    crowd(run, "a", 2, 0, max_tokens=20, priority=-1)
    run.step()
    crowd(run, "b", 1, 5, max_tokens=20)
    run.step()
    assert {sequence.cache_salt for sequence in run.scheduler.running} == {"a"}
    finish_all(run)
    assert run.scheduler.totals.preemptions == 0


@pytest.mark.row("P14")
@pytest.mark.parametrize("seed", range(8))
def test_random_users_short_of_blocks_and_seats_all_get_their_text(seed: int) -> None:
    rng = random.Random(seed)
    policy = rng.choice(["fcfs", "priority"])
    run = Run(
        make_scheduler(num_blocks=24, max_num_seqs=3, max_model_len=60, scheduling_policy=policy)
    )
    lengths = {f"r{number}": rng.randrange(1, 30) for number in range(60)}
    pending = list(lengths)
    while pending or run.scheduler.sequences:
        if pending and rng.random() < 0.6:
            name = pending.pop()
            user, priority = rng.choice(["a", "a", "a", "b", "c", ""]), rng.randrange(2)
            prompt = [int(name[1:]) + 1] * rng.randrange(1, 30)
            fields = {"cache_salt": user, "priority": priority, "max_tokens": lengths[name]}
            run.add(name, prompt=prompt, ignore_eos=True, **fields)
        computed = run.step()
        assert len(computed) <= 3, seed
        assert len(run.scheduler.running) <= 6, seed
    assert {name: len(run.tokens(name)) for name in lengths} == lengths, seed
    assert run.scheduler.totals.preemptions < 120, seed
    run.scheduler.check_idle()


@pytest.mark.parametrize("seed", range(8))
def test_shuffled_adds_aborts_and_preemptions_leave_every_block_free(seed: int) -> None:
    rng = random.Random(seed)
    run = Run(make_scheduler(num_blocks=12, max_num_batched_tokens=9, max_model_len=48))
    names = [f"r{i}" for i in range(40)]
    pending = names.copy()
    lengths = {}
    while pending or run.scheduler.sequences:
        if pending and rng.random() < 0.4:
            name = pending.pop()
            lengths[name] = rng.randrange(1, 20)
            num_prompt_tokens = rng.randrange(1, 25)
            run.add(name, num_prompt_tokens, max_tokens=lengths[name], ignore_eos=True)
        if rng.random() < 0.1:
            run.scheduler.abort("me", [rng.choice(names)])
        run.step()
        assert len(run.scheduler.running) <= 12, seed
    ends = run.ends()
    assert ends.keys() == set(names), seed
    for name, reason in ends.items():
        if reason == "length":
            assert len(run.tokens(name)) == lengths[name], seed
    assert run.scheduler.totals.preemptions > 0, seed
    assert run.scheduler.blocks.num_free == 12, seed
