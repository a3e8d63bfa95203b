"""The queue: in order however requests arrive; positions are told only when they change."""

import random

from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.waiting_queue import REPORT_SECONDS, WaitingQueue


def make_sequence(name: str, order: tuple[int, float, int]) -> Sequence:
    sequence = Sequence("me", name, [1] * (order[2] + 1), SamplingParams())
    sequence.order = order
    return sequence


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


def test_a_position_is_told_when_it_changes_and_not_too_often() -> None:
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
