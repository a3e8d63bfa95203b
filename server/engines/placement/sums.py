"""What several engines are together: their load, their room, their counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from server.engines.client import EngineClient, EngineError, EngineLoad

# Of figures that have no sum: what is true of all, or of the worst of them.
WORST = {"batch_invariant": min, "row_multiple": max, "sleeping": min, "text_only": max}


@dataclass(frozen=True, slots=True)
class SmallestModel:
    """As each of them can serve it."""

    max_model_len: int


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """What all of them do."""

    num_running: int
    num_waiting: int
    num_blocks_total: int
    num_blocks_free: int
    is_sleeping: bool

    @classmethod
    def of(cls, loads: Sequence[EngineLoad]) -> Self:
        """Of one at least."""
        return cls(
            sum(load.num_running for load in loads),
            sum(load.num_waiting for load in loads),
            sum(load.num_blocks_total for load in loads),
            sum(load.num_blocks_free for load in loads),
            all(load.is_sleeping for load in loads),
        )


def room_for(engine: EngineClient, n: int) -> tuple[int, EngineError | None]:
    """How many of `n` more requests it would take now, and why it takes no more of them."""
    refusal = _refusal(engine, n)
    if refusal is None:
        return n, None
    most, least = n, 0
    while most - least > 1:
        middle = (most + least) // 2
        if _refusal(engine, middle) is None:
            least = middle
        else:
            most = middle
    return least, refusal


def _refusal(engine: EngineClient, n: int) -> EngineError | None:
    try:
        engine.check_admission(n)
    except EngineError as error:
        return error
    return None


def sum_of(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The counters and gauges of several engines as those of one; words are those of the first."""
    total: dict[str, Any] = {}
    for values in metrics:
        for name, value in values.items():
            total[name] = _joined(name, total[name], value) if name in total else value
    return total


def _joined(name: str, before: Any, value: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return _joined_histogram(before, value)
    if name in WORST:
        return WORST[name](before, value)
    if isinstance(before, int | float) and isinstance(value, int | float):
        return before + value
    return before


def _joined_histogram(before: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of engines that count alike; else it is the first one's."""
    pairs = list(zip(before["buckets"], value["buckets"], strict=False))
    if len(before["buckets"]) != len(value["buckets"]) or any(a[0] != b[0] for a, b in pairs):
        return before
    sums = {name: before[name] + value[name] for name in ("sum", "count")}
    return {**sums, "buckets": [(le, count + more) for (le, count), (_, more) in pairs]}
