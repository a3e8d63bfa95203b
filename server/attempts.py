"""Wrong admin credentials, counted by address: who keeps guessing waits, and the log stays short.

A token that was right before is never kept waiting, so somebody who guesses from an admin's own
address cannot lock the admin out.
"""

import time
from collections.abc import Callable

import structlog

from server.errors import ApiError
from sessions.credentials import digest_of

logger = structlog.get_logger("server")

MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000
MAX_FORGIVEN = 1000


class FailedAttempts:
    """Of one worker. A window begins with an address's first failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # address → begin, failures
        self._forgiven: set[str] = set()  # digests of tokens that were right

    def check(self, address: str, token: str) -> None:
        """Raise `ApiError` `rate_limited` while the address has to wait."""
        begin, failures = self._window(address)
        if failures < MAX_FAILURES or digest_of(token) in self._forgiven:
            return
        left = begin + WINDOW_SECONDS - self._clock()
        raise ApiError(
            "rate_limited", "too many wrong tokens", retry_after_ms=max(1, int(left * 1000))
        )

    def count(self, address: str) -> None:
        """A token was wrong. Only the first of a window is logged."""
        begin, failures = self._window(address)
        if not failures:
            logger.warning("wrong admin token", address=address)
            if len(self._windows) >= MAX_ADDRESSES:
                self._windows.clear()  # forgetting is kinder than growing
        self._windows[address] = (begin, failures + 1)

    def forgive(self, token: str) -> None:
        """A token was right."""
        if len(self._forgiven) >= MAX_FORGIVEN:
            self._forgiven.clear()
        self._forgiven.add(digest_of(token))

    def _window(self, address: str) -> tuple[float, int]:
        """Begin and failures of the address's window; an old one is over."""
        now = self._clock()
        begin, failures = self._windows.get(address, (now, 0))
        return (now, 0) if now - begin >= WINDOW_SECONDS else (begin, failures)
