"""`Timeline`: when what happened to an answer."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Timeline:
    """Moments of a run, `time.monotonic()` seconds; None until they come."""

    created: float = field(default_factory=time.monotonic)
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    done: float | None = None
    at: dict[str, int] = field(default_factory=dict)  # milliseconds since 1970, by Redis' clock
    clock_ahead_ms: int | None = None  # of Redis' clock to ours

    def note(self, name: str, at_ms: int | None = None) -> None:
        """Keep a moment, by default the present one; the first of its name counts."""
        self.at.setdefault(name, _now_ms() + (self.clock_ahead_ms or 0) if at_ms is None else at_ms)

    def set_clock(self, redis_ms: int) -> None:
        """It was that late by Redis' clock; of all its replies the one that came soonest counts."""
        ahead = redis_ms - _now_ms()
        if self.clock_ahead_ms is None or ahead > self.clock_ahead_ms:
            self.clock_ahead_ms = ahead

    def wire(self, num_tokens: int) -> dict[str, Any]:
        """The `timings` object: milliseconds from the creation, the decoding rate, the moments."""
        end = self.done or time.monotonic()
        timings: dict[str, Any] = {"total_ms": _ms(end - self.created), **self.at}
        if self.scheduled is not None:
            timings["queue_ms"] = _ms(self.scheduled - self.created)
        if self.first_token is not None and self.last_token is not None:
            timings["ttft_ms"] = _ms(self.first_token - self.created)
            decoding = self.last_token - self.first_token
            if num_tokens > 1 and decoding > 0:
                timings["tokens_per_s"] = round((num_tokens - 1) / decoding, 1)
        return timings


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
