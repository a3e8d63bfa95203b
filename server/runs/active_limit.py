"""`ActiveLimit`: how many answers of one user may run at once, counted over all workers."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from server.live.hub import Hub
from server.protocol.errors import ApiError
from server.protocol.objects import RateLimit
from sessions.model.errors import NoSlot, StoreUnavailable
from sessions.store.store import SessionStore

RENEW_SECONDS = 10.0  # the store forgets a slot after 30 s


class ActiveLimit:
    """A limit that is set: where there is none, there is no such object."""

    def __init__(self, store: SessionStore, hub: Hub, limit: int) -> None:
        self._store = store
        self._hub = hub
        self._limit = limit

    async def take(self, uid: str, response_id: str, *, instead: bool = False) -> int:
        """Count an answer that is about to begin; returns how many more may.

        `instead`: it replaces one that runs. Raises `ApiError` `rate_limited`.
        """
        try:
            count = await self._store.slots.take(uid, response_id, self._limit + instead)
        except NoSlot as full:
            raise ApiError(
                "rate_limited", f"{full.count} answers are running already", retry_after_ms=1000
            ) from full
        return max(0, self._limit - count)

    def free(self, uid: str, response_id: str) -> None:
        """The answer has ended, or never began."""
        self._hub.spawn(self._free(uid, response_id))

    async def _free(self, uid: str, response_id: str) -> None:
        with contextlib.suppress(StoreUnavailable):  # then it expires
            await self._store.slots.free(uid, response_id)

    async def renew_forever(self, slots: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Keep the slots of the answers that this worker produces: users and ids."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            renewals = [self._store.slots.renew(uid, answer_id) for uid, answer_id in slots()]
            await asyncio.gather(*renewals, return_exceptions=True)

    def entry(self, remaining: int) -> RateLimit:
        """What is left, as `rate_limits.updated` says it."""
        return RateLimit(name="responses", limit=self._limit, remaining=remaining, reset_seconds=0)
