"""`Breaker`: an engine that fails again and again is asked nothing for a while.

It may say that it is well, and fail all the same whatever it is asked.
"""

NUM_FAILURES = 3  # in a row
FIRST_SECONDS = 1.0  # without a request after so many; twice as long after each further one
MAX_SECONDS = 30.0


class Breaker:
    """Of one engine. Moments are of the event loop's clock."""

    def __init__(self) -> None:
        self._num_failures = 0  # in a row
        self._closed_until = 0.0

    def may_ask(self, now: float) -> bool:
        """Whether it may be asked something; after a while, it is tried again."""
        return now >= self._closed_until

    def succeed(self) -> None:
        """It has answered something."""
        self._num_failures = 0
        self._closed_until = 0.0

    def fail(self, now: float) -> None:
        """It has failed to."""
        self._num_failures += 1
        extra = self._num_failures - NUM_FAILURES
        if extra >= 0:
            self._closed_until = now + min(FIRST_SECONDS * 2.0 ** min(extra, 10), MAX_SECONDS)
