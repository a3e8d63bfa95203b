"""`Tether`: a worker that has to end does end, even if its threads hang.

Separate threads receive the signals and notice when the supervisor is gone, even while the event
loop hangs and other threads wait. They notify the worker, give it its time, and then end the
process at once: no thread is joined, nothing runs at exit.

If no Python thread runs at all, because one holds the interpreter and computes, these threads
cannot check either, and a kernel timer ends the process.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import structlog

logger = structlog.get_logger("server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
TICK_SECONDS = 0.5
GRACE_SECONDS = 10.0  # from the last chance to finish until the process is ended
HELD_SECONDS = 30.0  # of processor time that pass without a tick: the interpreter is held
LAST_WORDS_SECONDS = 0.5
AGAIN_SECONDS = 0.1  # until a line is tried again that the pipe had no room for
EXIT_HUNG = 4
EXIT_TERMINATED = 128 + signal.SIGTERM


class Tether(threading.Thread):
    """Made in the main thread before there are others, which inherit that they hear no signals.

    Until `serve_with`, a process that has to end is ended at once: there is nothing to finish.
    """

    def __init__(self) -> None:
        super().__init__(name="tether", daemon=True)
        self._lock = threading.Lock()
        self._tell: Callable[[], object] | None = None
        self._drain_seconds = 0.0
        self._num_signals = 0
        self._deadline: float | None = None
        # Not stdin itself, which the event loop reads and closes.
        self._supervisor = select.poll()
        self._supervisor.register(os.dup(0), 0)  # its end is reported without being asked for
        self._is_orphan = False
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=self._hear, name="tether-ears", daemon=True).start()
        self.start()

    def serve_with(
        self, on_signal: Callable[[], None], loop: asyncio.AbstractEventLoop, drain_seconds: float
    ) -> None:
        """From now on `on_signal` is called on that loop for each signal."""
        with self._lock:
            self._tell = lambda: loop.call_soon_threadsafe(on_signal)
            self._drain_seconds = drain_seconds

    def expect_end(self, seconds: float) -> None:
        """The process ends within so long, and the grace; it is ended otherwise."""
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        with self._lock:
            self._deadline = min(deadline, self._deadline or deadline)

    def run(self) -> NoReturn:
        while True:
            signal.setitimer(signal.ITIMER_PROF, HELD_SECONDS)
            if self._is_orphan:
                # A thread's own pause; the supervisor is gone, so there is nothing to wait for.
                time.sleep(TICK_SECONDS)
            elif self._supervisor.poll(TICK_SECONDS * 1000):
                self._is_orphan = True
                self._end_unless_serving()
                self.expect_end(0.0)  # the event loop sees it, too
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._end()

    def _hear(self) -> NoReturn:
        """In a thread of its own: with a time limit, `sigtimedwait` takes the end of a halt for a
        signal.
        """
        while True:
            signal.sigwait(SIGNALS)
            self._take_signal()

    def _take_signal(self) -> None:
        self._end_unless_serving()
        self._num_signals += 1
        # The second one is from somebody in a hurry.
        self.expect_end(self._drain_seconds if self._num_signals == 1 else 0.0)
        assert self._tell is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the process will
            self._tell()

    def _end_unless_serving(self) -> None:
        with self._lock:
            if self._tell is None:
                os._exit(EXIT_TERMINATED)

    def _end(self) -> NoReturn:
        """Without waiting for the log either: a thread that hangs may hold it."""
        words = threading.Thread(
            target=lambda: logger.error("worker hung and was ended"), daemon=True
        )
        words.start()
        words.join(LAST_WORDS_SECONDS)
        os._exit(EXIT_HUNG)


def leave(status: int) -> NoReturn:
    """End the process: threads that still compute must not hold it up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class SupervisorLine:
    """Lines of JSON to the supervisor, on stdout. Never waits: what finds no room comes later."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._unsent = b""
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, line: Mapping[str, Any]) -> None:
        self._unsent += json.dumps(line).encode() + b"\n"
        if self._timer is None:
            self._send()

    def _send(self) -> None:
        self._timer = None
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._descriptor, self._unsent) :]
        except BlockingIOError:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._send)
        except OSError:
            self._unsent = b""  # the supervisor is gone, and so are we soon
