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


def test_pace_does_not_hold_back_prefills_and_nothing_due_means_wait_for_a_message() -> None:
    run = Run(make_scheduler(pace=1.0, max_num_batched_tokens=4))
    assert run.scheduler.next_due() is None
    run.add("a", 8, max_tokens=2)
    assert run.step() == run.step() == {"a": 4}
    assert run.step() == {}
