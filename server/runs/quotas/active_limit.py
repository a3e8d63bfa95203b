"""`ActiveLimit`: how many answers of one user may run at once, counted over all workers.

The server's setting holds for users who have no other limit; those of a group share one, too.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from server.live.hub import Hub
from server.protocol.errors import ApiError
from server.protocol.objects import RateLimit
from sessions.model.errors import NoSlot, StoreUnavailable
from sessions.model.quotas import GROUP_ANSWERS, Room
from sessions.store.store import SessionStore

RENEW_SECONDS = 10.0  # the store forgets a slot after 30 s


class ActiveLimit:
    """`limit` is the server's; 0 means any number."""

    def __init__(self, store: SessionStore, hub: Hub, limit: int) -> None:
        self._store = store
        self._hub = hub
        self.limit = limit

    async def take(self, uid: str, response_id: str, *, instead: bool = False) -> Room | None:
        """Count an answer that is about to begin; how many more may, None for any number.

        `instead`: it replaces one that runs. Raises `ApiError` `rate_limited`.
        """
        try:
            return await self._store.slots.take(uid, response_id, self.limit, more=int(instead))
        except NoSlot as full:
            of = " of your group" if full.quota == GROUP_ANSWERS else ""
            raise ApiError(
                "rate_limited",
                f"{full.count} answers{of} are running already",
                retry_after_ms=1000,
                quota=full.quota,
            ) from full

    def free(self, uid: str, response_id: str) -> None:
        """The answer has ended, or never began."""
        self._hub.spawn(self._free(uid, response_id))

    async def _free(self, uid: str, response_id: str) -> None:
        with contextlib.suppress(StoreUnavailable):  # then it expires
            await self._store.slots.free(uid, response_id, self.limit)

    async def renew_forever(self, slots: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Keep the slots of the answers that this worker produces: users and ids."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            renew = self._store.slots.renew
            renewals = [renew(uid, answer_id, self.limit) for uid, answer_id in slots()]
            await asyncio.gather(*renewals, return_exceptions=True)


def room_entry(room: Room) -> RateLimit:
    """What is left, as `rate_limits.updated` says it."""
    return RateLimit(name="responses", limit=room.limit, remaining=room.left, reset_seconds=0)
