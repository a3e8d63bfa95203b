"""The store's part for a limit on running answers: how many a user has, over all workers."""

from __future__ import annotations

from typing import Final

from sessions.model.arguments import check_uid
from sessions.model.errors import NoSlot
from sessions.store.context import StoreContext

# An owner renews several times within it; one that died leaves its slots for no longer.
SLOT_MS: Final = 30_000


class Slots:
    """Slots for running answers."""

    def __init__(self, context: StoreContext) -> None:
        self._client = context.client
        self._keys = context.keys

    async def take(self, uid: str, response_id: str, limit: int) -> int:
        """Count one more answer of this user; how many there are then. Raises `NoSlot`.

        A slot that is not renewed is free again after half a minute. A repeat changes nothing.
        """
        return await self._slot(uid, response_id, limit)

    async def renew(self, uid: str, response_id: str) -> None:
        """Keep the slot of an answer that still runs, or take it whatever the limit."""
        await self._slot(uid, response_id, None)

    async def free(self, uid: str, response_id: str) -> None:
        """The answer has ended."""
        check_uid(uid)
        await self._client.call("ZREM", self._keys.user_slots(uid), response_id)

    async def _slot(self, uid: str, response_id: str, limit: int | None) -> int:
        check_uid(uid)
        reply = await self._client.script(
            "take_slot",
            [self._keys.user_slots(uid)],
            response_id=response_id,
            limit=limit,
            life_ms=SLOT_MS,
        )
        if reply[0] == b"full":
            raise NoSlot(reply[1])
        return int(reply[1])
