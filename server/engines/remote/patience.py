"""`Patience`: how long what is waited for at an engine at an address; and `Failures` in a row."""

import random
import time
from dataclasses import dataclass

MAX_FAILURES = 5  # tries in a row, of any answers, without a token: it is of no use at present
MAX_PAUSE = 6  # times the longest wait between two looks for it


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds."""

    look: float = 1.0  # between two looks at an engine that is well
    reply: float = 5.0  # for a look, a probe, an abort
    stalled: float = 5.0  # without a sign of life: it counts as stalled
    dead: float = 20.0  # likewise: as dead
    first_byte: float = 600.0  # of an answer: it may wait its turn, and have a long prompt
    next_byte: float = 60.0  # of an answer that has begun
    again: tuple[float, float] = (0.1, 5.0)  # before it is looked for again: at first, at most
    breaker: float = 1.0  # before one that failed again and again is joined again, at first
    busy: float = 0.5  # before one that has too much to do is asked again

    @classmethod
    def of(cls, stillness: float) -> "Patience":
        """With so many seconds for an answer that stands still."""
        return cls(first_byte=10 * stillness, next_byte=stillness)


class Failures:
    """Of tries at one engine, of any answers; and how long it is left alone for them."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._num = 0  # in a row
        self._failed_at = 0.0  # the last of them
        self._pause = patience.breaker

    @property
    def are_too_many(self) -> bool:
        return self._num >= MAX_FAILURES

    def note(self, began_at: float) -> None:
        """A try that began then has failed; what broke at the same time has failed once."""
        if began_at > self._failed_at:
            self._num += 1
            self._failed_at = time.monotonic()

    def forget(self) -> None:
        """A token has come."""
        self._num = 0
        self._pause = self._patience.breaker

    def next_pause(self) -> float:
        """Seconds until it is joined again, longer each time; after that they count anew."""
        pause = self._pause * random.uniform(0.8, 1.2)
        self._pause = min(2 * self._pause, MAX_PAUSE * self._patience.again[1])
        self._num = 0
        return pause
