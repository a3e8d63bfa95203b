"""`Viewers`: how many connections watch each session of this worker, counted over all workers.

Every worker stores its own count and gets the sum of all. The store forgets a count that is not
repeated, so a worker that died is not counted for long.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sessions.model.errors import SessionError
from sessions.store.store import SessionStore

REFRESH_SECONDS = 20.0  # the store keeps a count for a minute
MIN_INTERVAL_SECONDS = 1.0  # between two frames about one session
REFRESHED_AT_ONCE = 100


@dataclass(slots=True)
class Count:
    """One session's viewers. `known`: what its viewers know."""

    total: int = 0
    known: int = 0
    known_at: float = 0.0
    timer: asyncio.TimerHandle | None = None


class Viewers:
    """`local` counts the viewers of a session here, `tell` sends a new sum to them."""

    def __init__(
        self,
        store: SessionStore,
        replica: str,
        *,
        local: Callable[[str], int],
        tell: Callable[[str, int], None],
    ) -> None:
        self._store = store
        self._replica = replica
        self._local = local
        self._tell = tell
        self._counts: dict[str, Count] = {}

    def total(self, session_id: str) -> int:
        """As far as it is known here."""
        count = self._counts.get(session_id)
        return max(self._local(session_id), count.total if count else 0)

    async def announce(self, session_id: str) -> None:
        """Somebody came or went here: store it, and so tell the other workers."""
        count = self._local(session_id)
        if count:
            self._counts.setdefault(session_id, Count())
        elif (known := self._counts.pop(session_id, None)) is not None and known.timer is not None:
            known.timer.cancel()
        try:
            total = await self._store.viewers.set(session_id, self._replica, count)
        except SessionError:
            total = count  # the next refresh corrects it
        self.take(session_id, total)

    def take(self, session_id: str, total: int) -> None:
        """A sum that this worker or another one has got from the store."""
        count = self._counts.get(session_id)
        if count is None:
            return
        count.total = total
        if count.timer is None and total != count.known:
            wait = count.known_at + MIN_INTERVAL_SECONDS - time.monotonic()
            if wait <= 0:
                self._show(session_id, count)
            else:
                loop = asyncio.get_running_loop()
                count.timer = loop.call_later(wait, self._show, session_id, count)

    def _show(self, session_id: str, count: Count) -> None:
        count.timer = None
        if count.total != count.known:
            count.known, count.known_at = count.total, time.monotonic()
            self._tell(session_id, count.total)

    async def refresh_forever(self) -> None:
        """Repeat our counts before the store forgets them."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for some in _in_groups(list(self._counts)):
                await asyncio.gather(*(self.announce(session_id) for session_id in some))


def _in_groups(session_ids: list[str]) -> Iterable[list[str]]:
    for start in range(0, len(session_ids), REFRESHED_AT_ONCE):
        yield session_ids[start : start + REFRESHED_AT_ONCE]
