"""`CoreHost`: `parley core`, a core of this machine that servers on others join.

The supervisor of a machine that has nothing else: it starts the core, and starts it again when it
dies or hangs. A signal ends both; answers that run then go on elsewhere, or when it is back.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import structlog

from server.engines.managed import EngineSetupError, ManagedEngine

logger = structlog.get_logger("server")

TICK_SECONDS = 0.5  # in which a core that died or hangs is noticed
EXIT_REFUSED = 2


class CoreHost:
    """`prepare` gets the engine ready, which calls what it is given from other threads."""

    def __init__(
        self, prepare: Callable[[Callable[[], None]], ManagedEngine], *, is_json: bool
    ) -> None:
        self._prepare = prepare
        self._is_json = is_json
        self._is_ending = False
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        """Until a signal, or until it does not start any more; the exit code."""
        with self._signals():
            try:
                engine = self._prepare(self._wake)
            except EngineSetupError as error:
                self._tell(f"{error}", "error")
                return EXIT_REFUSED
            try:
                return self._serve(engine)
            finally:
                engine.stop()

    def _serve(self, engine: ManagedEngine) -> int:
        engine.start()
        while engine.is_starting and not self._is_ending:
            self._sleep(engine)
        if engine.start_error is not None:
            self._tell(f"the core did not start: {engine.start_error}", "error")
            return EXIT_REFUSED
        if not self._is_ending:
            self._tell(f"the core of {engine.model_name} is ready", "info")
        while not self._is_ending:
            if not engine.watch():
                num = engine.num_failed_starts
                self._tell(f"the core failed to start {num} times: {engine.start_error}", "error")
                return 1
            self._sleep(engine)
        return 0

    def _tell(self, text: str, level: str) -> None:
        """To the operator: as a line, or as an event where the log is JSON."""
        if self._is_json:
            getattr(logger, level)(text)
        else:
            print(f"parley: {text}", file=sys.stderr, flush=True)

    def _sleep(self, engine: ManagedEngine) -> None:
        due = engine.due
        seconds = TICK_SECONDS if due is None else min(TICK_SECONDS, due - time.monotonic())
        if select.select([self._wake_read], [], [], max(0.0, seconds))[0]:
            os.read(self._wake_read, 4096)

    def _wake(self) -> None:
        os.write(self._wake_write, b"w")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def end(number: int, frame: FrameType | None) -> None:
            self._is_ending |= number != signal.SIGCHLD
            self._wake()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        before = {number: signal.signal(number, end) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
