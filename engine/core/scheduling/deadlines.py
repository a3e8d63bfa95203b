"""`Deadlines`: how long a request may wait for its first step, and how long it may be computed."""

import math
from collections.abc import Iterable, Iterator

from engine.config import EngineConfig
from engine.core.scheduling.sequence import Problem, Sequence

CHECK_SECONDS = 0.25  # how late a deadline may be noticed


class Deadlines:
    """All times are monotonic seconds."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_queue_seconds = config.max_queue_seconds
        self._max_request_seconds = config.max_request_seconds
        self._last_check = -math.inf

    @property
    def next_check(self) -> float | None:
        """When to look again; None where nothing is limited."""
        if self._max_queue_seconds is None and self._max_request_seconds is None:
            return None
        return self._last_check + CHECK_SECONDS

    def find_overdue(
        self, sequences: Iterable[Sequence], now: float
    ) -> Iterator[tuple[Sequence, Problem]]:
        """Those that have waited, or have run, for too long; none until `next_check`."""
        if self.next_check is None or now < self.next_check:
            return
        self._last_check = now
        for sequence in list(sequences):  # a copy: the caller ends them meanwhile
            if sequence.scheduled_ts:
                since, limit = sequence.scheduled_ts, self._max_request_seconds
                code, deed = "request_timeout", "finished"
            else:
                since, limit = sequence.queued_ts, self._max_queue_seconds
                code, deed = "queue_timeout", "started"
            if limit is not None and now - since > limit:
                yield sequence, (code, f"not {deed} within {limit:g} s")
