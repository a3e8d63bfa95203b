"""The store's part for viewers: how many connections watch a session, over all workers."""

from __future__ import annotations

from typing import Final

from sessions.indexes.indexes import local_ms
from sessions.model.ids import check_session_id
from sessions.store.context import SESSION_SUFFIXES, StoreContext

# A worker repeats its count well within that time; one that died is not counted for longer.
VIEWERS_MS: Final = 60_000
CLOCK_SLACK_MS: Final = 30_000  # our clock may run ahead of Redis', by which counts are dated


class Viewers:
    """Counts of viewers."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._client = context.client
        self._keys = context.keys

    async def set(self, session_id: str, replica: str, count: int) -> int:
        """Say how many connections of this worker watch; returns how many do on all of them.

        Every worker that follows the session gets it as `viewer.changed`. A count is forgotten
        after a minute; one for a session that is gone is not kept. A session that is watched does
        not expire.
        """
        check_session_id(session_id)
        reply = await self._client.script(
            "set_viewers",
            self._context.session_keys(session_id, "v", *SESSION_SUFFIXES),
            channel=self._keys.session_channel(session_id),
            session_id=session_id,
            replica=replica,
            count=count,
            life_ms=VIEWERS_MS,
            idle_ms=self._context.idle_ms,
        )
        return int(reply[1])

    async def count(self, session_id: str) -> int:
        """How many connections watch a session now."""
        check_session_id(session_id)
        row = await self._client.call("HGETALL", self._keys.session(session_id, "v"))
        counts = [tuple(map(int, value.split())) for value in row.values()]
        oldest = local_ms() - VIEWERS_MS - CLOCK_SLACK_MS
        return sum(count for count, counted_at in counts if counted_at > oldest)
