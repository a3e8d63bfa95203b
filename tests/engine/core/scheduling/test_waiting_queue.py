"""The queue: in order however requests arrive; positions are reported only when they change."""

import random

import pytest

from engine.core.scheduling.sequence import Sequence
from engine.core.scheduling.waiting_queue import REPORT_SECONDS, WaitingQueue
from engine.sampling_params import SamplingParams


def make_sequence(name: str, order: tuple[int, float, int]) -> Sequence:
    priority, arrival, number = order
    sequence = Sequence("me", name, [1] * (number + 1), SamplingParams())
    sequence.order = (priority, 0, arrival, number)
    return sequence


def push(queue: WaitingQueue, user: str, name: str, arrival: float) -> Sequence:
    sequence = Sequence("me", name, [1], SamplingParams(), cache_salt=user)
    sequence.order = (0, queue.next_turn(user), arrival, 0)
    queue.push(sequence)
    return sequence


def served(queue: WaitingQueue, count: int) -> list[str]:
    names = []
    for _ in range(count):
        names.append(queue.head.request_id)
        queue.let_in(queue.head)
        queue.check_integrity()
    return names


def test_the_head_is_the_most_urgent_then_the_earliest() -> None:
    queue = WaitingQueue()
    for name, order in [("late", (0, 2.0, 0)), ("early", (0, 1.0, 1)), ("urgent", (-1, 9.0, 2))]:
        queue.push(make_sequence(name, order))
    served = []
    while queue:
        served.append(queue.head.request_id)
        queue.remove(queue.head)
    assert served == ["urgent", "early", "late"]
    assert queue.num_tokens == 0


def test_any_may_leave_and_the_rest_stay_in_order() -> None:
    rng = random.Random(0)
    queue = WaitingQueue()
    here = [make_sequence(f"r{n}", (rng.randrange(3), rng.randrange(5), n)) for n in range(50)]
    for sequence in here:
        queue.push(sequence)
    while here:
        queue.remove(here.pop(rng.randrange(len(here))))
        queue.check_integrity()
        assert len(queue) == len(here)


def test_a_position_is_reported_when_it_changes_and_not_too_often() -> None:
    queue = WaitingQueue()
    first, second = make_sequence("a", (0, 1.0, 0)), make_sequence("b", (0, 2.0, 1))
    assert list(queue.move_up(0.0)) == []
    queue.push(first)
    queue.push(second)
    assert list(queue.move_up(0.0)) == [first, second]
    assert (first.num_tokens_ahead, second.num_tokens_ahead) == (0, first.num_tokens)
    queue.remove(first)
    assert list(queue.move_up(REPORT_SECONDS / 2)) == []
    assert list(queue.move_up(REPORT_SECONDS)) == [second]
    assert (second.queue_position, second.num_tokens_ahead) == (0, 0)
    assert list(queue.move_up(9 * REPORT_SECONDS)) == []


@pytest.mark.row("P14")
def test_users_take_turns_however_much_one_asks() -> None:
    queue = WaitingQueue()
    for number in range(5):
        push(queue, "a", f"a{number}", number)
    assert served(queue, 2) == ["a0", "a1"]
    for number in range(3):
        push(queue, "b", f"b{number}", 10 + number)
    push(queue, "c", "c0", 20)
    assert served(queue, 4) == ["b0", "c0", "a2", "b1"]
    push(queue, "c", "c1", 21)
    assert served(queue, 4) == ["c1", "a3", "b2", "a4"]


@pytest.mark.row("P14")
def test_a_user_who_withdrew_everything_begins_anew() -> None:
    queue = WaitingQueue()
    for sequence in [push(queue, "a", f"a{number}", number) for number in range(9)]:
        queue.remove(sequence)
    push(queue, "b", "b0", 10)
    push(queue, "b", "b1", 11)
    push(queue, "a", "again", 12)
    assert served(queue, 3) == ["b0", "again", "b1"]


@pytest.mark.row("P14")
def test_without_salts_requests_are_served_as_they_come() -> None:
    queue = WaitingQueue()
    for number in (3, 1, 2, 0):
        push(queue, "", f"r{number}", number)
    assert served(queue, 4) == ["r0", "r1", "r2", "r3"]
