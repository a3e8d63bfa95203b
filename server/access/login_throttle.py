"""Wrong credentials, counted by address: guessing is slowed down, and the log stays short.

Wrong credentials never lock out others at the same address, say behind one proxy: a secret that is
long enough to be one of ours is looked up however many wrong ones came before. Guessing such a
secret is hopeless. Shorter ones are not even looked up any more.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from server.config.limits import MIN_SECRET_CHARACTERS
from server.protocol.errors import ApiError

logger = structlog.get_logger("server")

MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000


@dataclass(slots=True)
class _Window:
    """A minute of one address, from its first attempt on."""

    begin: float
    num_attempts: int = 0  # that failed, or whose outcome is not known yet
    is_logged: bool = False


class LoginThrottle:
    """Of one worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    @contextlib.contextmanager
    def attempt(self, address: str, secret: str) -> Iterator[None]:
        """Somebody tries a secret: a block that raises `ApiError` `token_invalid` if it is wrong.

        It counts while the block runs, and stays counted if it was wrong. What ends otherwise (the
        secret has expired, the store is away, the client has left) is nobody's guess. Raises
        `ApiError` `rate_limited` for a wrong secret of an address that has to wait.
        """
        window = self._window(address)
        must_wait = window.num_attempts >= MAX_FAILURES
        if must_wait and len(secret) < MIN_SECRET_CHARACTERS:
            raise self._wait(window)
        window.num_attempts += 1
        try:
            yield
        except ApiError as error:
            if error.code != "token_invalid":
                window.num_attempts -= 1
                raise
            self._log_once(window, address)
            if must_wait:
                raise self._wait(window) from None
            raise
        except BaseException:
            window.num_attempts -= 1
            raise
        window.num_attempts -= 1

    def _wait(self, window: _Window) -> ApiError:
        left_ms = (window.begin + WINDOW_SECONDS - self._clock()) * 1000
        return ApiError(
            "rate_limited", "too many wrong credentials", retry_after_ms=max(1, int(left_ms))
        )

    def _log_once(self, window: _Window, address: str) -> None:
        """Only the first of a window is logged."""
        if not window.is_logged:
            window.is_logged = True
            logger.warning("wrong credential", address=address)

    def _window(self, address: str) -> _Window:
        now = self._clock()
        window = self._windows.get(address)
        if window is None or now - window.begin >= WINDOW_SECONDS:
            if len(self._windows) >= MAX_ADDRESSES:
                self._windows.clear()  # bounds memory; guesses are counted from zero
            window = self._windows[address] = _Window(now)
        return window
