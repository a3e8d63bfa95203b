"""`--pace`: so many tokens a second for each answer, and no step while nothing is due."""

import pytest

from tests.engine.helpers.fakes import make_scheduler
from tests.engine.helpers.scheduler_run import Run


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


def test_many_answers_that_are_due_are_computed_in_parts() -> None:
    run = full_run()
    run.now = 100.101
    parts = [run.step(), run.step()]
    assert [len(part) for part in parts] == [16, 4]
    assert set(parts[0]) | set(parts[1]) == {f"a{number}" for number in range(20)}
    assert run.step() == {}


def test_a_newcomer_waits_for_one_part() -> None:
    run = full_run()
    run.now = 100.101
    run.step()
    run.add("b", max_tokens=9)
    step = run.step()
    assert (len(step), step["b"]) == (5, 3)  # the other four go on beside it


def test_answers_that_are_late_by_a_tick_are_computed_at_once() -> None:
    run = full_run()
    run.now = 100.201
    assert len(run.step()) == 20


def full_run() -> Run:
    """Twenty answers that wait for the next tick of the pace, at 100.1."""
    run = Run(make_scheduler(pace=10.0, max_num_seqs=21))
    for number in range(20):
        run.add(f"a{number}", max_tokens=9)
    while run.step():
        pass
    return run


def test_pace_does_not_hold_back_prefills_and_nothing_due_means_wait_for_a_message() -> None:
    run = Run(make_scheduler(pace=1.0, max_num_batched_tokens=4))
    assert run.scheduler.next_due() is None
    run.add("a", 8, max_tokens=2)
    assert run.step() == run.step() == {"a": 4}
    assert run.step() == {}
