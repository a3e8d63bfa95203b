"""The scheduler: who is computed when, and that everything ends exactly once."""

import random
from typing import Any

import pytest

from engine.ipc import SequenceOutput
from engine.scheduler import Scheduler
from engine.sequence import SampledToken, SequenceStatus
from tests.engine.fakes import EOS, FakeModel, make_request, make_scheduler


class Run:
    """A scheduler with a scripted model and a clock that the test moves."""

    def __init__(self, scheduler: Scheduler, model: FakeModel | None = None) -> None:
        self.scheduler = scheduler
        self.model = model or FakeModel()
        self.now = 100.0
        self.outputs: list[SequenceOutput] = []

    def add(self, request_id: str, *args: int, **fields: Any) -> None:
        self.scheduler.add("me", make_request(request_id, *args, **fields), self.now)

    def step(self) -> dict[str, int]:
        """One step; how many tokens of whom were computed."""
        scheduled = self.scheduler.schedule(self.now)
        if scheduled:
            self.scheduler.update(scheduled, self.model.execute(scheduled), self.now)
        self.outputs += self.scheduler.take_outputs().get("me", [])
        self.scheduler.check_integrity()
        return {item.sequence.request_id: item.num_tokens for item in scheduled}

    def ends(self) -> dict[str, str]:
        self.outputs += self.scheduler.take_outputs().get("me", [])
        ends = [o for o in self.outputs if o.finish_reason is not None]
        assert len({o.request_id for o in ends}) == len(ends), "ended twice"
        return {o.request_id: o.finish_reason or "" for o in ends}

    def tokens(self, request_id: str) -> list[int]:
        return [t for o in self.outputs if o.request_id == request_id for t in o.new_token_ids]


def test_a_request_prefills_then_decodes_then_ends_by_length() -> None:
    run = Run(make_scheduler())
    run.add("a", 3, max_tokens=3)
    assert [run.step(), run.step(), run.step(), run.step()] == [{"a": 3}, {"a": 1}, {"a": 1}, {}]
    assert run.tokens("a") == [4, 5, 6]
    assert run.ends() == {"a": "length"}


def test_decodes_come_before_prefills_and_share_the_budget() -> None:
    run = Run(make_scheduler(max_num_batched_tokens=8))
    run.add("a", 3, max_tokens=9)
    run.step()
    run.add("b", 20, max_tokens=2)
    run.add("c", 3, max_tokens=2)
    assert run.step() == {"a": 1, "b": 7}
    assert run.step() == {"a": 1, "b": 7}
    assert run.step() == {"a": 1, "b": 6, "c": 1}


def test_one_prompt_takes_no_more_than_its_share() -> None:
    run = Run(make_scheduler(max_num_batched_tokens=16, long_prefill_token_threshold=6))
    run.add("a", 20)
    run.add("b", prompt=[9] * 5)
    assert run.step() == {"a": 6, "b": 5}


def test_no_more_than_max_num_seqs_run() -> None:
    run = Run(make_scheduler(max_num_seqs=2))
    for name in "abc":
        run.add(name, max_tokens=2)
    assert set(run.step()) == {"a", "b"}
    assert set(run.step()) == {"a", "b"}
    assert set(run.step()) == {"c"}


def test_waiting_is_served_by_priority_then_arrival() -> None:
    run = Run(make_scheduler(max_num_seqs=1, scheduling_policy="priority"))
    run.add("late", arrival_time=9.0, max_tokens=1)
    run.add("early", arrival_time=1.0, max_tokens=1)
    run.add("urgent", arrival_time=10.0, priority=-1, max_tokens=1)
    assert [next(iter(run.step())) for _ in range(3)] == ["urgent", "early", "late"]


def test_first_come_first_served_ignores_priority() -> None:
    run = Run(make_scheduler(max_num_seqs=1))
    run.add("first", arrival_time=1.0)
    run.add("urgent", arrival_time=2.0, priority=-1)
    assert list(run.step()) == ["first"]


def test_eos_ends_with_stop_unless_ignored_or_too_early() -> None:
    run = Run(make_scheduler(), FakeModel(lambda sequence: EOS))
    run.add("plain", max_tokens=5)
    run.add("ignoring", max_tokens=5, ignore_eos=True)
    run.add("later", max_tokens=5, min_tokens=2)
    for _ in range(6):
        run.step()
    assert run.ends() == {"plain": "stop", "ignoring": "length", "later": "stop"}
    assert len(run.tokens("later")) == 3


def test_an_end_of_text_beyond_the_vocabulary_is_no_stop_id() -> None:
    scheduler = make_scheduler()
    scheduler.eos_token_ids |= {10**6}  # it would index beyond the logits, with min_tokens
    sequence = scheduler.add("me", make_request("a", min_tokens=2), 0.0)
    assert sequence is not None and sequence.stop_ids == {EOS}


def test_a_stop_id_is_named_and_kept() -> None:
    run = Run(make_scheduler())
    run.add("a", 3, max_tokens=9, stop_token_ids=[6])
    for _ in range(4):
        run.step()
    assert run.tokens("a") == [4, 5, 6]
    assert run.outputs[-1].stop_reason == 6


def test_the_context_ends_an_answer_without_a_limit() -> None:
    run = Run(make_scheduler(max_model_len=10))
    run.add("a", 7, max_tokens=None)
    for _ in range(4):
        run.step()
    assert run.tokens("a") == [8, 9, 10]
    assert run.ends() == {"a": "length"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": []}, "invalid_request"),
        ({"prompt": [1, 5000]}, "invalid_request"),
        ({"prompt": [1], "allowed_token_ids": [5000]}, "invalid_request"),
        ({"prompt": [1] * 200}, "context_length_exceeded"),
        ({"prompt": [1], "prompt_logprobs": 1}, "unsupported_parameter"),
    ],
)
def test_r36_what_can_never_be_served_is_refused_at_once(
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


def test_aborts_are_counted_apart_from_stop_strings() -> None:
    scheduler = make_scheduler()
    for name in ("stopped", "aborted"):
        scheduler.add("me", make_request(name), 0.0)
    scheduler.abort("me", ["stopped"], "stop")
    scheduler.abort("me", ["aborted"])
    assert scheduler.totals.aborts == 1


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


def test_computing_too_long_is_an_error() -> None:
    run = Run(make_scheduler(max_num_seqs=1, max_request_seconds=2.0))
    run.add("runs", max_tokens=90)
    run.add("waits", max_tokens=90)
    run.step()
    run.now += 1.9
    run.step()
    assert run.ends() == {}
    run.now += 0.3
    run.step()
    assert run.ends() == {"runs": "error"}
    (error,) = [output.error for output in run.outputs if output.error]
    assert error == ("request_timeout", "not finished within 2 s")
    run.now += 1.9  # the other one began only now
    run.step()
    assert run.ends() == {"runs": "error"}
    assert run.scheduler.next_due() is not None


def test_r3_an_abort_while_waiting_ends_without_a_token_and_touches_no_block() -> None:
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
def test_r6_an_abort_frees_every_block_from_every_state_and_its_id_at_once(state: str) -> None:
    run = Run(make_scheduler(num_blocks=16, max_num_batched_tokens=8))
    run.add("a", 12, max_tokens=40)
    if state != "waiting":
        run.step()
    if state in ("running", "preempted"):
        run.step()
    if state == "preempted":
        run.scheduler._preempt(run.scheduler.running[0])
    (sequence,) = run.scheduler.sequences.values()
    run.scheduler.abort("me", ["a", "a", "unknown", ""])
    run.scheduler.abort("me", ["a"])
    assert run.scheduler.finish(sequence, "length") is None
    assert run.ends() == {"a": "abort"}
    assert run.scheduler.blocks.num_free == 16
    run.add("a", max_tokens=1)  # the id is free again
    run.step()
    run.scheduler.check_integrity()


def test_r11_ids_are_compared_whole_and_per_client() -> None:
    run = Run(make_scheduler())
    run.add("r1")
    run.add("r10")
    run.scheduler.abort("me", ["r1", ""])
    run.scheduler.abort("you", ["r10"])
    assert [s.request_id for s in run.scheduler.waiting] == ["r10"]


def test_r16_aborted_waiting_requests_cost_no_forward_pass() -> None:
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


def test_r14_blocks_released_while_a_step_runs_are_free_when_it_has_ended() -> None:
    scheduler = make_scheduler(num_blocks=8)
    scheduler.add("me", make_request("a", 14), 0.0)
    scheduled = scheduler.schedule(0.0)
    scheduler.abort("me", ["a"])
    assert (scheduler.blocks.num_free, scheduler.blocks.num_soon_free) == (4, 4)
    scheduler.check_integrity()
    scheduler.update(scheduled, FakeModel().execute(scheduled), 0.0)
    assert (scheduler.blocks.num_free, scheduler.blocks.num_soon_free) == (8, 0)


def test_r18_a_batch_holds_only_what_the_request_map_holds() -> None:
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


def test_r35_one_set_of_victims_makes_room_for_all_decodes_of_a_step() -> None:
    run = make_growing_run(13, "abcd")
    assert run.scheduler.blocks.num_free == 1
    assert list(run.step()) == ["a", "b", "c"]  # d alone gives three blocks for three
    assert run.scheduler.totals.preemptions == 1


def test_r35_blocks_that_are_free_soon_are_waited_for_before_another_goes() -> None:
    run = make_growing_run(10, "abc")
    run.scheduler.blocks.start_step()  # as if one were in flight
    run.scheduler.abort("me", ["c"])
    blocks = run.scheduler.blocks
    assert (blocks.num_free, blocks.num_soon_free) == (1, 3)
    assert run.step() == {"a": 1}  # b waits, and keeps its blocks; this ended the step in flight
    assert run.step() == {"a": 1, "b": 1}
    blocks.end_step()
    assert run.scheduler.totals.preemptions == 0


def test_r35_the_oldest_is_never_a_victim_and_nobody_thrashes() -> None:
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


def test_p14_another_user_gets_a_seat_at_once_and_nothing_is_lost() -> None:
    run = Run(make_scheduler(max_num_seqs=4))
    crowd(run, "a", 8, 0, max_tokens=20)
    for _ in range(5):
        run.step()
    crowd(run, "b", 1, 20, max_tokens=20)
    steps = [run.step(), run.step()]
    assert "b0" in steps[1]
    running = {sequence.request_id for sequence in run.scheduler.running}
    assert running == {"a0", "a1", "a2", "b0"}
    texts = finish_all(run)
    assert len(texts) == 9
    assert all(len(tokens) == 20 for tokens in texts.values())
    assert run.tokens("a3") == list(range(32, 52))  # it had begun, and went on where it was


def test_p14_nobody_keeps_more_than_half_of_the_blocks_from_others() -> None:
    run = Run(make_scheduler(num_blocks=16, max_model_len=48))
    crowd(run, "a", 4, 0, max_tokens=10)  # four blocks each, in the end
    for _ in range(4):
        run.step()
    crowd(run, "b", 2, 20, max_tokens=10)
    for _ in range(3):
        run.step()
    assert {sequence.cache_salt for sequence in run.scheduler.running} == {"a", "b"}
    assert all(len(tokens) == 10 for tokens in finish_all(run).values())


def test_p14_a_user_with_half_loses_nothing_and_the_last_one_stays() -> None:
    run = Run(make_scheduler(max_num_seqs=2))
    crowd(run, "a", 1, 0, max_tokens=20)
    crowd(run, "b", 2, 5, max_tokens=20)
    crowd(run, "c", 1, 9, max_tokens=20)
    finish_all(run)
    assert run.scheduler.totals.preemptions == 0


def test_r19_after_a_stop_the_next_turn_finds_its_prefix() -> None:
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


def test_siblings_wait_for_the_first_prefill_and_share_its_blocks() -> None:
    run = Run(make_scheduler(max_num_batched_tokens=8))
    for name in "abc":
        run.add(name, 14, max_tokens=2)
    assert [run.step() for _ in range(3)] == [
        {"a": 8},
        {"a": 6},
        {"a": 1, "b": 2, "c": 2},
    ]


def test_resumed_tokens_are_output_and_only_new_ones_come() -> None:
    run = Run(make_scheduler())
    run.add("a", 3, resume_token_ids=[4, 5], max_tokens=4)
    while run.scheduler.sequences:
        run.step()
    assert run.tokens("a") == [6, 7]
    assert run.ends() == {"a": "length"}


@pytest.mark.parametrize(("resumed", "reason"), [([4, 5], "length"), ([4, EOS], "stop")])
def test_a_resumed_answer_that_was_complete_ends_at_once(resumed: list[int], reason: str) -> None:
    run = Run(make_scheduler())
    run.add("a", 3, resume_token_ids=resumed, max_tokens=2 if reason == "length" else 9)
    assert run.ends() == {"a": reason}


def test_progress_is_told_when_let_in_and_after_each_chunk() -> None:
    run = Run(make_scheduler(max_num_batched_tokens=8))
    run.add("a", 20, max_tokens=1)
    while run.scheduler.sequences:
        run.step()
    assert [o.num_computed_tokens for o in run.outputs] == [0, 8, 16, 20]
    assert all(o.scheduled_ts == 100.0 for o in run.outputs)


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


def test_nan_of_one_row_ends_that_request_alone() -> None:
    model = FakeModel(lambda s: SampledToken(-1, error="nan") if s.request_id == "bad" else 7)
    run = Run(make_scheduler(), model)
    run.add("bad")
    run.add("good", max_tokens=2)
    run.step()
    run.step()
    assert run.ends() == {"bad": "error", "good": "length"}


def test_pace_gives_one_token_per_tick_and_sleeps_between() -> None:
    run = Run(make_scheduler(pace=10.0))
    run.now = 100.03
    run.add("a", max_tokens=4)
    assert run.step() == {"a": 3}  # the first token is not held back
    assert run.step() == {}
    assert run.scheduler.next_due() == pytest.approx(100.1)
    run.now = 100.1001
    assert run.step() == {"a": 1}
    assert run.step() == {}
    assert run.scheduler.next_due() == pytest.approx(100.2)


def test_paced_answers_share_their_ticks() -> None:
    run = Run(make_scheduler(pace=10.0))
    run.add("a", max_tokens=9)
    run.step()
    run.now = 100.05
    run.add("b", max_tokens=9)
    assert run.step() == {"b": 3}
    run.now = 100.101
    assert run.step() == {"a": 1, "b": 1}


def test_a_late_answer_goes_on_at_once_but_does_not_catch_up() -> None:
    run = Run(make_scheduler(pace=10.0))
    run.add("a", max_tokens=9)
    run.step()
    run.now = 101.0  # ten ticks later: one token for the tick that was due, one for this
    assert [run.step(), run.step(), run.step()] == [{"a": 1}, {"a": 1}, {}]


def test_pace_does_not_hold_back_prefills_and_nothing_due_means_wait_for_a_message() -> None:
    run = Run(make_scheduler(pace=1.0, max_num_batched_tokens=4))
    assert run.scheduler.next_due() is None
    run.add("a", 8, max_tokens=2)
    assert run.step() == run.step() == {"a": 4}
    assert run.step() == {}


def test_a_dead_clients_requests_end_without_a_word() -> None:
    run = Run(make_scheduler())
    run.add("a")
    run.scheduler.add("you", make_request("a"), 0.0)
    run.step()
    run.scheduler.drop_client("me")
    assert list(run.scheduler.sequences) == [("you", "a")]
    assert "me" not in run.scheduler.take_outputs()


def test_r33_a_prompt_larger_than_the_cache_is_refused_at_once() -> None:
    run = Run(make_scheduler(num_blocks=5, max_model_len=100))
    run.add("too long", 20)
    run.add("fits", 19)
    assert run.ends() == {"too long": "error"}
    run.step()
    assert run.ends() == {"too long": "error", "fits": "length"}


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


def test_statuses_follow_the_life_of_a_sequence() -> None:
    run = Run(make_scheduler())
    sequence = run.scheduler.add("me", make_request("a", max_tokens=1), 0.0)
    assert sequence is not None
    states = [sequence.status]
    scheduled = run.scheduler.schedule(0.0)
    states.append(sequence.status)
    run.scheduler.update(scheduled, run.model.execute(scheduled), 0.0)
    states.append(sequence.status)
    assert states == [SequenceStatus.WAITING, SequenceStatus.RUNNING, SequenceStatus.FINISHED]


def test_a_prompt_is_read_in_chunks_that_fit_into_the_seconds_of_a_step() -> None:
    run = Run(make_scheduler(max_num_batched_tokens=128, max_step_seconds=0.03))
    run.scheduler.prompt_budget.observe(100, 0.05)
    run.add("a", 3, max_tokens=9)
    run.step()
    run.add("b", 100, max_tokens=2)
    assert run.step() == {"a": 1, "b": 48}
