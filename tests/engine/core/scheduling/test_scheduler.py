"""The scheduler: who is computed when, and that everything ends exactly once."""

import pytest

from engine.core.scheduling.sequence import SampledToken, SequenceStatus
from tests.engine.helpers.fakes import EOS, FakeModel, make_request, make_scheduler
from tests.engine.helpers.scheduler_run import Run


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


def test_progress_is_reported_when_let_in_and_after_each_chunk() -> None:
    run = Run(make_scheduler(max_num_batched_tokens=8))
    run.add("a", 20, max_tokens=1)
    while run.scheduler.sequences:
        run.step()
    assert [o.num_computed_tokens for o in run.outputs] == [0, 8, 16, 20]
    assert all(o.scheduled_ts == 100.0 for o in run.outputs)


def test_nan_of_one_row_ends_that_request_alone() -> None:
    model = FakeModel(
        lambda s: SampledToken(-1, error=("engine_error", "nan")) if s.request_id == "bad" else 7
    )
    run = Run(make_scheduler(), model)
    run.add("bad")
    run.add("good", max_tokens=2)
    run.step()
    run.step()
    assert run.ends() == {"bad": "error", "good": "length"}


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
