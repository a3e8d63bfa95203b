"""When to try again, and what a close means: the reconnect rule of docs/protocol.md.

A network that is back says nothing, so tries are quick at first; jitter and a back-off spare a
server that cannot take them.
"""

import random
import re
from dataclasses import dataclass

FIRST_SECONDS = 0.25  # "at once", spread a little
QUICK_SECONDS = 0.25  # between the starts of two quick tries; by chance up to twice that
QUICK_TRIES = 20
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.3, 20.0
RESET_SECONDS = 30.0  # connected this long: the next trouble is a new one
LEAST_LIMIT_SECONDS, MOST_LIMIT_SECONDS = 0.5, 10.0
LOSSES = (1001, 1006, 1012)


class Retries:
    """Times are seconds of one clock."""

    def __init__(self) -> None:
        self.num_put_off = 0
        self._num_quick = 0
        self._lost_at: float | None = None
        self._began_at: float | None = None  # the last try, if it did not open
        self._opened_at: float | None = None
        self._opening = MOST_LIMIT_SECONDS  # what the last opening took; nobody knows yet

    def began(self, now: float) -> float:
        """A try begins. Returns after how long to give it up."""
        self._began_at = now
        away = now - (self._lost_at if self._lost_at is not None else now)
        return min(MOST_LIMIT_SECONDS, max(LEAST_LIMIT_SECONDS, 3 * self._opening, away / 4))

    def opened(self, now: float) -> None:
        self._opening = now - (self._began_at if self._began_at is not None else now)
        self._opened_at = now
        self._began_at = self._lost_at = None

    def closed(self, now: float) -> None:
        """The connection is lost, or the try has failed."""
        if self._opened_at is not None and now - self._opened_at >= RESET_SECONDS:
            self._num_quick = self.num_put_off = 0
        self._opened_at = None
        self._lost_at = now if self._lost_at is None else self._lost_at

    def delay(self, now: float, is_loss: bool) -> float:
        """How long until the next try; `is_loss`: of the network, as far as one can know."""
        if is_loss and self._num_quick < QUICK_TRIES:
            self._num_quick += 1
            if self._began_at is None:
                return random.uniform(0, FIRST_SECONDS)
            return max(0.0, self._began_at + QUICK_SECONDS * random.uniform(1, 2) - now)
        bound = min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0**self.num_put_off)
        self.num_put_off += 1
        return random.uniform(0, bound)


@dataclass(frozen=True, slots=True)
class ClosePolicy:
    """What a client does after a close."""

    reconnects: bool
    is_loss: bool = False
    after_seconds: float = 0.0
    max_put_off: int | None = None


def close_policy(code: int, reason: str) -> ClosePolicy:
    """`reason` is `code`, or `code;key=value`."""
    asked = re.search(r"retry_after_ms=(\d+)", reason)
    after = int(asked[1]) / 1000 if asked else 0.0
    if code == 4429:
        return ClosePolicy(True, after_seconds=after if asked else 5.0)
    if code == 4410:  # an administrator closed a session, which `session.evicted` has named
        return ClosePolicy(True)
    if code == 4500:
        return ClosePolicy(True, max_put_off=5)
    if code in (1000, 1002, 1003, 1007, 1009) or 4400 <= code < 4500:
        return ClosePolicy(False)
    return ClosePolicy(True, is_loss=code in LOSSES, after_seconds=after)
