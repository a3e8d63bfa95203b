"""Wrong admin credentials, counted by address: who keeps guessing waits, and the log stays short.

A token that was right before is never kept waiting, so somebody who guesses from an admin's own
address cannot lock the admin out.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from server.errors import ApiError
from sessions.credentials import digest_of

logger = structlog.get_logger("server")

MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000
MAX_TRUSTED = 1000


@dataclass(slots=True)
class _Window:
    """A minute of one address, from its first attempt on."""

    begin: float
    num_attempts: int = 0  # that failed, or whose outcome is not known yet
    is_logged: bool = False


class FailedAttempts:
    """Of one worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._trusted: set[str] = set()  # digests of tokens that were right

    @contextlib.contextmanager
    def attempt(self, address: str, token: str) -> Iterator[None]:
        """Somebody tries a token: a block that raises `ApiError` if it is wrong.

        It counts while the block runs, and stays counted if it was wrong. What ends without an
        answer (the store is away, the client has left) is nobody's guess. Raises `ApiError`
        `rate_limited` while the address has to wait.
        """
        digest = digest_of(token)
        # A token that was right before fills nobody's window.
        window = _Window(0) if digest in self._trusted else self._window(address)
        if window.num_attempts >= MAX_FAILURES:
            left_ms = (window.begin + WINDOW_SECONDS - self._clock()) * 1000
            raise ApiError(
                "rate_limited", "too many wrong tokens", retry_after_ms=max(1, int(left_ms))
            )
        window.num_attempts += 1
        try:
            yield
        except ApiError:
            self._log_once(address)
            raise
        except BaseException:
            window.num_attempts -= 1
            raise
        window.num_attempts -= 1
        self._trust(digest)

    def _log_once(self, address: str) -> None:
        """Only the first of a window is logged."""
        window = self._window(address)
        if not window.is_logged:
            window.is_logged = True
            logger.warning("wrong admin token", address=address)

    def _trust(self, digest: str) -> None:
        if digest not in self._trusted and len(self._trusted) >= MAX_TRUSTED:
            self._trusted.clear()
        self._trusted.add(digest)

    def _window(self, address: str) -> _Window:
        now = self._clock()
        window = self._windows.get(address)
        if window is None or now - window.begin >= WINDOW_SECONDS:
            if len(self._windows) >= MAX_ADDRESSES:
                self._windows.clear()  # forgetting is kinder than growing
            window = self._windows[address] = _Window(now)
        return window
