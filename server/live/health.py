"""Whether Redis and the engine can be used; every client hears of a change.

Redis can be used when every primary answers and takes writes. What an operator must mend although
all works so far is for the log, the console and `/readyz` alone; why Redis cannot be used, for the
log and the console.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import structlog

from server.config.intervals import Intervals
from server.engines.client import CoreState, EngineClient
from server.live.hub import Hub
from server.protocol.server_frames import ConnectionDegraded, ConnectionRestored
from server.telemetry.metrics import Metrics
from sessions.model.errors import StoreRefused, StoreUnavailable
from sessions.model.replies import StoreFault
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

OK: Literal["ok"] = "ok"
CHECK_SECONDS = 0.5
WRITE_SECONDS = 2.0  # between two trial writes while all is well
NEARLY_FULL_BYTES = 1 << 30  # that are left, or a tenth of a smaller disk
NEARLY_FULL = StoreFault("the disk of the data directory is nearly full")


class Health:
    """The worker's view of the two parts that it cannot do without.

    `on_refused` hears that a Redis that was away at the start must not be used; `on_change` that
    `state` is another one. `since`: when each part came into its state (ms since 1970). `folder` is
    where our own Redis keeps its files; None: it is not ours.
    """

    def __init__(
        self,
        store: SessionStore,
        engine: EngineClient,
        hub: Hub,
        metrics: Metrics,
        intervals: Intervals,
        on_refused: Callable[[StoreRefused], None] = lambda error: None,
        on_change: Callable[[], None] = lambda: None,
        folder: Path | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._hub = hub
        self._metrics = metrics
        self._intervals = intervals
        self._on_refused = on_refused
        self._on_change = on_change
        self._folder = folder
        self._wrote_at = self._looked_at = float("-inf")
        self.store_heard_at = time.monotonic()  # when Redis was last found well
        self.state: dict[str, str] = {
            "store": "ok" if store.is_verified else "unavailable",
            "engine": "unavailable",  # it is loading
        }
        self.since = dict.fromkeys(self.state, _now_ms())
        self._once_ok = {part for part, state in self.state.items() if state == "ok"}
        self.faults: tuple[StoreFault, ...] = ()
        self._refusal = ""  # why Redis cannot be used, as it says itself

    @property
    def degraded(self) -> dict[str, str]:
        """The parts that are not `ok`."""
        return {part: state for part, state in self.state.items() if state != "ok"}

    @property
    def problems(self) -> dict[str, str]:
        """Why the worker is not ready, also for those who run it; empty when it is."""
        faults = [fault.text for fault in self.faults if fault.loses_data]
        return {**self.degraded, "redis": "; ".join(faults)} if faults else self.degraded

    @property
    def store_problems(self) -> list[str]:
        """For who runs it: why Redis cannot be used, and what would lose data, or will."""
        refusal = [self._refusal] if self.state["store"] != "ok" and self._refusal else []
        return [*refusal, *(fault.text for fault in self.faults)]

    async def watch_forever(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def store_exited(self) -> None:
        """The supervisor's Redis died: say so even if it is back before the next look."""
        self._refusal = "redis-server has died"
        self._set(store="unavailable")

    async def check(self) -> None:
        """Look at both parts and announce what changed."""
        try:
            await self._check_store()
            store = "ok"
        except StoreUnavailable as error:
            self._refusal = str(error).removeprefix("Redis cannot be used: ")
            store = "unavailable"
        except StoreRefused as error:
            self._refusal = str(error)
            self._on_refused(error)
            store = "unavailable"
        self._set(store=store, engine=self._engine_state())
        self._metrics.feed_up.set(self._hub.hears_others)

    async def _check_store(self) -> None:
        """Return if the store can be used. Raises `StoreUnavailable`, `StoreRefused`."""
        if not self._store.is_verified:
            await self._store.verify()
        if not await self._store.ping():
            logger.error("redis lost its data")
            self._hub.data_loss.look_at_all()
        now = time.monotonic()
        if self.state["store"] != "ok" or now - self._wrote_at >= WRITE_SECONDS:
            await self._store.check_writes()
            self._wrote_at = now
        self.store_heard_at = time.monotonic()
        if now - self._looked_at >= self._intervals.settings:
            self._looked_at = now
            faults = await self._store.find_faults()
            if self._folder is not None and await asyncio.to_thread(is_nearly_full, self._folder):
                faults.append(NEARLY_FULL)
            self._take_faults(faults)

    def _take_faults(self, faults: list[StoreFault]) -> None:
        for fault in faults:
            if fault not in self.faults:
                logger.log(logging.ERROR if fault.loses_data else logging.WARNING, fault.text)
        if self.faults and not faults:
            logger.info("redis is as it should be again")
        self.faults = tuple(faults)

    def _engine_state(self) -> str:
        if self._engine.core_state == CoreState.READY:
            return "ok"
        return "stalled" if self._engine.core_state == CoreState.STALLED else "unavailable"

    def _set(self, **now: str) -> None:
        changed = {part: state for part, state in now.items() if self.state[part] != state}
        self.state.update(changed)
        self.since.update(dict.fromkeys(changed, _now_ms()))
        self._metrics.store_up.set(self.state["store"] == "ok")
        self._metrics.engine_up.set(self.state["engine"] == "ok")
        restored = {part: state for part, state in changed.items() if state == "ok"}
        if degraded := {part: state for part, state in changed.items() if state != "ok"}:
            why = {"reason": self._refusal} if "store" in degraded else {}
            logger.warning("connection degraded", **degraded, **why)
            self._hub.broadcast(degraded_frame(degraded))
        if restored:
            self._log_restored(restored)
            self._hub.broadcast(ConnectionRestored(**dict.fromkeys(restored, OK)))
        if changed:
            self._on_change()

    def _log_restored(self, parts: dict[str, str]) -> None:
        was_lost = not self._once_ok.isdisjoint(parts)  # at the start nothing was
        logger.info("connection restored" if was_lost else "connected", **parts)
        self._once_ok.update(parts)


def degraded_frame(parts: dict[str, Any]) -> ConnectionDegraded:
    """What the parts that are not `ok` are."""
    return ConnectionDegraded(**parts)


def is_nearly_full(folder: Path) -> bool:
    """Whether the disk below it should be looked after while everything works."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return False
    return usage.free < min(NEARLY_FULL_BYTES, usage.total // 10)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
