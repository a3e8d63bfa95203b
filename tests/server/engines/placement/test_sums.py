"""What several engines are together."""

from typing import Any

import pytest

from server.engines.client import EngineError, QueueOverflowError
from server.engines.placement.sums import GroupLoad, room_for, sum_of
from tests.server.helpers.engines import IdleEngine


def histogram(first: int, second: int) -> dict[str, Any]:
    buckets = [[0.1, first], [float("inf"), second]]
    return {"buckets": buckets, "sum": float(second), "count": second}


def test_counters_and_histograms_add_up_and_words_are_those_of_the_first() -> None:
    one = {"steps_total": 5, "model_name": "m", "step_seconds": histogram(1, 4)}
    other = {"steps_total": 7, "model_name": "n", "step_seconds": histogram(2, 6), "more": 1}
    total = sum_of([one, other])
    assert (total["steps_total"], total["model_name"], total["more"]) == (12, "m", 1)
    assert total["step_seconds"] == {
        "buckets": [(0.1, 3), (float("inf"), 10)],
        "sum": 10.0,
        "count": 10,
    }


def test_what_has_no_sum_is_what_is_true_of_all() -> None:
    one = {"batch_invariant": 1, "row_multiple": 8, "sleeping": 1}
    other = {"batch_invariant": 0, "row_multiple": 16, "sleeping": 0}
    assert sum_of([one, other]) == {"batch_invariant": 0, "row_multiple": 16, "sleeping": 0}


def test_engines_that_count_otherwise_spoil_no_histogram() -> None:
    other = {"buckets": [[0.5, 1]], "sum": 1.0, "count": 1}
    assert sum_of([{"s": histogram(1, 4)}, {"s": other}])["s"] == histogram(1, 4)


def test_a_group_sleeps_when_all_of_it_does() -> None:
    asleep, awake = GroupLoad(0, 0, 1, 1, True), GroupLoad(0, 0, 1, 1, False)
    assert GroupLoad.of([asleep, asleep]).is_sleeping
    assert not GroupLoad.of([asleep, awake]).is_sleeping


class Limited(IdleEngine):
    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def check_admission(self, n: int = 1) -> None:
        if n > self.room:
            raise QueueOverflowError("too many requests are waiting")


@pytest.mark.parametrize("room", range(12))
def test_how_many_requests_an_engine_would_take_is_found_out(room: int) -> None:
    engine = Limited(room)
    for asked in range(1, 12):
        found, refusal = room_for(engine, asked)
        assert found == min(room, asked)
        assert isinstance(refusal, EngineError) is (room < asked)
