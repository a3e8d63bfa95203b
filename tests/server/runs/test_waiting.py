"""`QueueEstimate`: what is said of a wait, and when nothing is."""

import pytest

from server.runs import waiting as module
from server.runs.waiting import QueueEstimate

Clock = list[float]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_nothing_is_said_before_anybody_has_waited() -> None:
    estimate = QueueEstimate()
    assert estimate.wait_ms("engine", 3) is None
    assert estimate.wait_ms("session", 1) is None


def test_the_engine_queue_is_as_fast_as_it_was(clock: Clock) -> None:
    estimate = QueueEstimate()
    estimate.moved("a", 4)
    clock[0] = 3.0
    estimate.moved("a", 2)  # two places in three seconds
    assert estimate.wait_ms("engine", 0) == 1500
    assert estimate.wait_ms("engine_waking", 0) is None
    assert estimate.wait_ms("engine", 3) == 6000


def test_the_newest_observation_counts_most_but_not_alone(clock: Clock) -> None:
    estimate = QueueEstimate()
    for position in (2, 1):
        estimate.moved("a", position)
        clock[0] += 1.0
    estimate.moved("b", 1)
    clock[0] += 5.0
    estimate.moved("b", 0)
    assert 1000 < (estimate.wait_ms("engine", 0) or 0) < 5000


def test_going_back_in_the_queue_says_nothing_about_its_speed(clock: Clock) -> None:
    estimate = QueueEstimate()
    estimate.moved("a", 1)
    clock[0] = 1.0
    estimate.moved("a", 3)  # preempted, or somebody with priority came
    assert estimate.wait_ms("engine", 0) is None


def test_a_session_queue_waits_for_whole_answers() -> None:
    estimate = QueueEstimate()
    estimate.finished("a", 2.0)
    assert estimate.wait_ms("session", 1) == 2000
    assert estimate.wait_ms("session", 3) == 6000
