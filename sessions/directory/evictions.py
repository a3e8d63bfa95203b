"""What an admin does to a session: take no more answers, send its viewers away."""

from __future__ import annotations

import secrets
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.errors import SessionNotFound
from sessions.model.ids import check_session_id
from sessions.model.keys import Keys
from sessions.model.session_events import SessionEvictedEvent, encode_session_event
from sessions.store.context import LOG_LIMITS

LOCK: Final = "+"  # what evict_session.lua does to a session; the reason follows
UNLOCK: Final = "-"


class Evictions:
    """Any method may raise `SessionNotFound` and `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def lock(self, session_id: str, reason: str) -> None:
        """Let the session take no new answer; a refusal gives the reason."""
        await self._apply(session_id, lock=f"{LOCK}{reason}")

    async def unlock(self, session_id: str) -> None:
        """Let it take answers again."""
        await self._apply(session_id, lock=UNLOCK)

    async def evict(self, session_id: str, reason: str) -> None:
        """Tell all viewers, on every worker, that they must leave."""
        event = SessionEvictedEvent(by="admin", reason=reason)
        await self._apply(session_id, event=encode_session_event(event))

    async def _apply(
        self, session_id: str, *, lock: str | None = None, event: bytes | None = None
    ) -> None:
        """Change the lock, log and publish an event; None leaves either as it is."""
        check_session_id(session_id)
        reply = await self._client.script(
            "evict_session",
            [self._keys.session(session_id, "m"), self._keys.session(session_id, "log")],
            channel=self._keys.session_channel(session_id),
            call_id=secrets.token_urlsafe(6),
            lock=lock,
            event=event,
            **LOG_LIMITS,
        )
        if reply[0] != b"ok":
            raise SessionNotFound
