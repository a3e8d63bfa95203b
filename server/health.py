"""Whether Redis and the engine can be used, told to every client when it changes."""

import asyncio
import logging
from typing import Any

import structlog

from engine import AsyncLLM
from engine.connection import CoreState
from server.hub import Hub
from server.metrics import Metrics
from sessions.errors import StoreUnavailable
from sessions.store import SessionStore

logger = structlog.get_logger("server")

CHECK_SECONDS = 0.5


class Health:
    """The worker's view of the two parts that it cannot do without."""

    def __init__(self, store: SessionStore, engine: AsyncLLM, hub: Hub, metrics: Metrics) -> None:
        self._store = store
        self._engine = engine
        self._hub = hub
        self._metrics = metrics
        self.state: dict[str, str] = {"store": "ok", "engine": "unavailable"}  # it is loading

    @property
    def problems(self) -> dict[str, str]:
        """What is not `ok`; empty when the worker can serve."""
        return {part: state for part, state in self.state.items() if state != "ok"}

    async def watch_forever(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def store_exited(self) -> None:
        """The supervisor's Redis died: say so even if it is back before the next look."""
        self._set(store="unavailable")

    async def check(self) -> None:
        """Look at both parts and announce what changed."""
        try:
            await self._store.ping()
            store = "ok"
        except StoreUnavailable:
            store = "unavailable"
        self._set(store=store, engine=self._engine_state())

    def _engine_state(self) -> str:
        if self._engine.core_state == CoreState.READY:
            return "ok"
        return "stalled" if self._engine.core_state == CoreState.STALLED else "unavailable"

    def _set(self, **now: str) -> None:
        changed = {part: state for part, state in now.items() if self.state[part] != state}
        self.state.update(changed)
        self._metrics.store_up.set(self.state["store"] == "ok")
        self._metrics.engine_up.set(self.state["engine"] == "ok")
        for kind, frame in (("degraded", {}), ("restored", {})):
            for part, state in changed.items():
                if (state == "ok") == (kind == "restored"):
                    frame[part] = state
            if frame:
                level = logging.WARNING if kind == "degraded" else logging.INFO
                logger.log(level, "connection " + kind, **frame)
                body: dict[str, Any] = {"type": f"connection.{kind}", **frame}
                self._hub.broadcast(body)
