"""`Standby`: a second engine core, loaded but without memory for its cache, which may take over.

It is a process like the first, with the same sizes. It computes nothing until it is called, so it
takes its weights' memory alone. A thread waits while it loads; all methods belong to the
supervisor's own thread.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from engine import CoreProcess, EngineStartError
from engine.config import EngineConfig

logger = structlog.get_logger("server")

AGAIN_SECONDS = 60.0  # after one has died, until the next is started


@dataclass(slots=True)
class _Second:
    """One standby core, and why it could not start, if it could not."""

    process: CoreProcess
    problem: str | None = None

    def wait(self) -> None:
        try:
            self.process.wait_prepared()
            logger.info("standby core is ready", pid=self.process.pid)
        except EngineStartError as error:
            self.problem = error.reason
        except Exception as error:  # whatever it is, there is none, and it is not waited for
            logger.exception("standby core cannot be waited for")
            self.problem = f"it cannot be waited for: {type(error).__name__}"


class Standby:
    """At most one standby core, for a core that serves. `now` is replaced in tests."""

    def __init__(self, config: EngineConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._now = now
        self._second: _Second | None = None
        self._is_due = True  # for the core that serves now: it has not failed beside it
        self._again_at = 0.0  # by `now`

    def watch(self, core: CoreProcess) -> None:
        """Start one beside a core that is ready, if there is none; notice the end of one."""
        second = self._second
        if second is None:
            if self._is_due and self._now() >= self._again_at:
                self._start(core)
        elif second.problem is not None:
            self._give_up(second.problem)
        elif second.process.is_prepared and (status := second.process.poll()) is not None:
            logger.warning("standby core died", status=status, again_in_seconds=AGAIN_SECONDS)
            self._again_at = self._now() + AGAIN_SECONDS
            self.stop()

    def take(self) -> CoreProcess | None:
        """The standby core, called to serve; None if there is none that can do so at once."""
        self._is_due = True
        process = None if self._second is None else self._second.process
        if process is None or not process.is_prepared or process.poll() is not None:
            self.stop()
            return None
        self._second = None
        process.call()
        logger.info("standby core takes over", pid=process.pid)
        return process

    def stop(self) -> None:
        """End it, whatever it does."""
        second, self._second = self._second, None
        if second is not None:
            second.process.terminate(timeout=1.0)  # it has nothing to finish

    def _start(self, core: CoreProcess) -> None:
        num_bytes, num_blocks = (core.report.get(name) for name in ("standby_bytes", "num_blocks"))
        if num_bytes is None:
            self._give_up("the model runs on a GPU, where there is no room for two")
            return
        # As many blocks as clients know, however much memory is free now.
        config = msgspec.structs.replace(self._config, num_blocks=num_blocks)
        second = self._second = _Second(CoreProcess(config, standby_bytes=num_bytes))
        threading.Thread(target=second.wait, name="core-standby", daemon=True).start()

    def _give_up(self, reason: str) -> None:
        """Until the next core serves."""
        self.stop()
        self._is_due = False
        logger.warning("no standby core", reason=reason)
