"""`Control`: the commands that other workers and the supervisor send this worker."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from server.commands.services import Services
from server.config.models import statuses_of
from server.engines.joining import learn
from server.runs.stop import StoredStop
from server.telemetry.logs import set_log_level
from sessions.connection.feed import LiveFeed
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame, LivePayload


class Control:
    """`stop_asked` is set when the worker is to drain, `hurry` when it is not to wait for answers.

    `on_change` is called when the worker is to say something else of itself.
    """

    def __init__(
        self,
        replica: str,
        services: Services,
        feed: LiveFeed,
        *,
        stop_asked: asyncio.Event,
        hurry: asyncio.Event | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._replica = replica
        self._keys = services.store.keys
        self._models = services.models
        self._hub = services.hub
        self._runs = services.runs
        self._takeover = services.takeover
        self._health = services.health
        self._identities = services.identities
        self._notices = services.notices
        self._names = services.names
        self._adapters = services.adapters
        self._repeats = services.stateless.repeats
        self._feed = feed
        self._stop_asked = stop_asked
        self._hurry = hurry or asyncio.Event()
        self._on_change = on_change

    async def listen(self) -> None:
        """Commands to this worker, and to all; the feed outlives an outage by itself."""
        keys = self._keys
        while True:
            try:
                await self._feed.subscribe(keys.system_channel, self._on_announcement)
                await self._feed.subscribe(keys.control_channel(self._replica), self._on_control)
                return
            except StoreUnavailable:
                await asyncio.sleep(1.0)

    def _on_announcement(self, payload: LivePayload) -> None:
        self._identities.on_announcement(payload)
        self._notices.on_announcement(payload)
        self._names.on_announcement(payload)

    def _on_control(self, payload: LivePayload) -> None:
        if isinstance(payload, LiveFrame):
            self._hub.spawn(self.obey(payload.data))

    async def obey(self, command: dict[str, Any]) -> None:
        """Carry out a command of another worker, or of the supervisor."""
        match command:
            case {"type": "cancel", "response_id": str(response_id)}:
                await self._runs.stop_as_stored(response_id, StoredStop.of_command(command))
            case {"type": "consent", "response_id": str(response_id)}:
                self._runs.hear_consent(response_id)
            case {"type": "promote", "response_id": str(response_id)}:
                self._runs.promote(response_id)
            case {"type": "relay", "call_id": str(call_id), "channel": str(channel)}:
                self._repeats.relay(call_id, channel)
            case {"type": "relay_end", "channel": str(channel)}:
                self._repeats.end_relay(channel)
            case {"type": "deleted", "session_id": str(session_id)}:
                self._runs.stop_deleted(session_id)
            case {"type": "exited", "replica": str(replica)}:
                await self._takeover.adopt(replica)
            case {"type": "take_over", "response_id": str(response_id)}:
                with contextlib.suppress(StoreUnavailable):  # the next sweep finds it
                    await self._takeover.take_over(response_id)
            case {"type": "adapters"} if self._adapters is not None:
                with contextlib.suppress(StoreUnavailable):  # it looks again by itself
                    await self._adapters.refresh()
            case {"type": "models", "models": statuses}:
                await learn(self._models, self._models.take(statuses_of(statuses)))
            case {"type": "log_level", "level": str(level)}:
                set_log_level(level)
                self._on_change()
            case {"type": "asked", "number": int(number)}:
                self._models.hear(number, command.get("problem"))
            case {"type": "drain"}:
                self._stop_asked.set()
            case {"type": "restart"}:
                self._hurry.set()
                self._stop_asked.set()
            case {"type": "engine_gone"}:
                self._models.shutdown()  # there will be no other: every open answer fails
            case {"type": "store_exited"}:
                self._health.store_exited()
