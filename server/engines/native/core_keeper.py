"""`CoreKeeper`: one engine core after another, for the supervisor.

A core that dies is replaced, at once if it was the first in a while, and by the standby core if
there is one (`standby.py`). One that hangs is killed first. Loading a model takes its time, so a
thread waits for it. All methods but `clean_up` and `release` belong to the supervisor's own thread.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from engine import CoreProcess, EngineStartError, PrivateDirectory, UnsupportedModelError
from engine.client.probe import CoreProbe
from engine.config import EngineConfig
from server.config.models import ModelFacts
from server.engines.managed import EngineRefused
from server.engines.native.backoff import Backoff
from server.engines.native.fingerprint import file_stamps
from server.engines.native.forecast import own_bytes
from server.engines.native.standby import Standby

logger = structlog.get_logger("server")


class CoreKeeper:
    """`wake` is called from another thread when a core has started or failed to.

    `directory` holds the socket of the cores, and goes when the last of them has.
    """

    def __init__(
        self,
        config: EngineConfig,
        directory: PrivateDirectory,
        *,
        facts: ModelFacts,
        connect_options: Mapping[str, Any],
        watchdog_seconds: float,
        wake: Callable[[], None],
        standby_core: bool = False,
    ) -> None:
        self.start_error: str | None = None  # why the last start failed
        self.is_refusal = False  # for the model's sake: the reason stands for itself
        self.due: float | None = None  # time.monotonic() of the next start
        self.facts = facts
        self.connect_options = connect_options  # of the workers that join these cores
        self._config = config
        self._stamps = file_stamps(Path(config.model))
        self._directory = directory
        self._watchdog_seconds = watchdog_seconds
        self._wake = wake
        self._restarts = Backoff()
        self._standby = Standby(config) if standby_core else None
        self._core: CoreProcess | None = None
        self._starting: threading.Thread | None = None
        self._ready_at: float | None = None
        self._died_at: float | None = None  # the core before, if there was one
        self._probe: CoreProbe | None = None  # of a core that is ready
        self._must_end = False  # an administrator has asked for another one

    @property
    def model_name(self) -> str:
        return self._config.served_model_name

    @property
    def is_current(self) -> bool:
        return self._stamps == file_stamps(Path(self._config.model))

    @property
    def memory_bytes(self) -> int | None:
        core = self._core  # which a `release` in another thread may have ended by the next line
        return None if core is None else core.report.get("standby_bytes")

    @property
    def taken_bytes(self) -> int:
        core = self._core
        return 0 if core is None else own_bytes(core.pid)

    @property
    def num_failed_starts(self) -> int:
        return self._restarts.num_failed_starts

    @property
    def is_starting(self) -> bool:
        return self._ready_at is None and self.start_error is None

    def start(self) -> None:
        """Start a core and return; the rest goes on while it loads."""
        self.due = self.start_error = self._ready_at = None
        prepared = None if self._standby is None else self._standby.take()
        core = self._core = prepared or CoreProcess(self._config)

        def wait() -> None:
            try:
                core.wait_ready()
                self._ready_at = time.monotonic()
                if self._died_at is not None:
                    away = self._ready_at - self._died_at
                    logger.info("core serves again", after_seconds=round(away, 3))
            except EngineStartError as error:
                self.is_refusal = isinstance(error, UnsupportedModelError)
                self.start_error = error.reason
            except Exception as error:  # whatever it is, nobody must wait for ever
                logger.exception("core cannot be waited for")
                self.start_error = f"it cannot be waited for: {type(error).__name__}"
            self._wake()

        self._starting = threading.Thread(target=wait, name="core-start", daemon=True)
        self._starting.start()

    def restart(self) -> None:
        """Have the core end after its step; `watch` replaces it. Raises `EngineRefused`."""
        core = self._core
        if core is None or not core.is_ready or self._must_end:
            raise EngineRefused("it is starting: ask again when it is ready")
        self._must_end = True
        logger.info("core ends to be replaced", pid=core.pid)
        core.process.terminate()

    def watch(self) -> bool:
        """Replace what died or hangs. False when too many starts in a row have failed."""
        core = self._core
        if core is not None:
            if core.is_ready:
                self._kill_if_hanging(core)
                if self._standby is not None:
                    self._standby.watch(core)
            if core.poll() is not None and not self._plan_restart(core):
                return False
        if self.due is not None and time.monotonic() >= self.due:
            self.start()
        return True

    def release(self) -> None:
        """Its socket stays where it is, for the next one."""
        self._close_probe()
        if self._core is not None:
            self._core.terminate()
        if self._starting is not None:
            self._starting.join()
        if self._standby is not None:
            self._standby.stop()
        self._core = self._starting = self._ready_at = self._died_at = self.due = None
        self._must_end = False
        self._restarts = Backoff()

    def stop(self) -> None:
        self.release()
        self.clean_up()

    def clean_up(self) -> None:
        self._directory.remove()

    def _kill_if_hanging(self, core: CoreProcess) -> None:
        if self._probe is None:
            self._probe = CoreProbe(self._config.address)
        if self._probe.look() >= self._watchdog_seconds:
            logger.error("core hangs", silent_for_seconds=self._watchdog_seconds)
            core.process.kill()
            core.wait()

    def _plan_restart(self, core: CoreProcess) -> bool:
        died_at = time.monotonic()
        self._close_probe()
        if self._starting is not None:
            self._starting.join()  # it says whether the core was ever ready
        if self._ready_at is not None:  # else it has not served since the one before
            self._died_at = died_at
        ready_at = self._ready_at
        seconds = None if ready_at is None else time.monotonic() - ready_at
        is_meant, self._must_end = self._must_end, False
        delay = 0.0 if is_meant else self._restarts.delay_after(seconds)
        core.terminate()
        self._core = None
        if delay is None:
            return False
        self.due = time.monotonic() + delay
        if is_meant:
            return True
        reason = {} if self.start_error is None else {"error": self.start_error}
        logger.error("core died", status=core.poll(), restart_in_seconds=delay, **reason)
        return True

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
