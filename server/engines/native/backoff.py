"""`Backoff`: when the next engine core is started after one has died, and when no more."""

MAX_FAILED_STARTS = 10  # in a row
MAX_DELAY_SECONDS = 30.0
STABLE_SECONDS = 60.0  # a core that was ready for so long owes nothing to the ones before it


class Backoff:
    """Counts deaths. The first leads to a start at once, each soon after another to a later one."""

    def __init__(self) -> None:
        self._num_deaths = 0  # in a row, without a stable core between them
        self.num_failed_starts = 0  # in a row

    def delay_after(self, ready_seconds: float | None) -> float | None:
        """Seconds until the next start; None: give up.

        `ready_seconds` is how long the dead core had been ready, None if it never was.
        """
        if ready_seconds is None:
            self.num_failed_starts += 1
            if self.num_failed_starts == MAX_FAILED_STARTS:
                return None
        else:
            self.num_failed_starts = 0
            if ready_seconds >= STABLE_SECONDS:
                self._num_deaths = 0
        self._num_deaths += 1
        if self._num_deaths == 1:
            return 0.0
        return min(2.0 ** (self._num_deaths - 2), MAX_DELAY_SECONDS)
