"""The store's part for answers at a time: how many a user has, over all workers, and a group."""

from __future__ import annotations

from typing import Final

from sessions.model.arguments import check_uid
from sessions.model.errors import NoSlot
from sessions.model.quotas import GROUP_ANSWERS, USER_ANSWERS, Allowance, Room
from sessions.store.context import StoreContext
from sessions.store.quotas.allowances import Allowances

# An owner renews several times within it; one that died leaves its slots for no longer.
SLOT_MS: Final = 30_000


class Slots:
    """Slots for running answers.

    The keys of a user and of their group may be in two slots of a cluster, so that no script can
    take both. The user's is taken first, and given back when the group has none.
    """

    def __init__(self, context: StoreContext, allowances: Allowances) -> None:
        self._client = context.client
        self._keys = context.keys
        self._allowances = allowances

    async def take(self, uid: str, response_id: str, limit: int, *, more: int = 0) -> Room | None:
        """Count one more answer of this user, and of their group; the tighter of both limits.

        None: any number may run. `limit` is that of users who have no other one; 0 means any
        number. `more` may go beyond the limits, for an answer in the place of another. Raises
        `NoSlot`. A slot that is not renewed is free again after half a minute. A repeat changes
        nothing.
        """
        allowance = await self._allowances.of(uid)
        rooms: list[Room] = []
        if own := own_limit(allowance, limit):
            count = await self._slot(self._of_user(uid), response_id, own + more, USER_ANSWERS)
            rooms.append(Room(own, max(0, own - count)))
        if allowance.group is not None:
            key, shared = self._keys.group_slots(allowance.group), allowance.shared.answers
            try:
                # Also where any number may run: it tells that the answer lives.
                most = shared + more if shared else None
                count = await self._slot(key, response_id, most, GROUP_ANSWERS)
            except NoSlot:
                if own:
                    await self._client.call("ZREM", self._of_user(uid), response_id)
                raise
            if shared:
                rooms.append(Room(shared, max(0, shared - count)))
        return min(rooms, key=lambda room: room.left, default=None)

    async def renew(self, uid: str, response_id: str, limit: int) -> None:
        """Keep the slots of an answer that still runs, or take them beyond the limits, too."""
        for key, quota in await self._counted(uid, limit):
            await self._slot(key, response_id, None, quota)

    async def free(self, uid: str, response_id: str, limit: int) -> None:
        """The answer has ended."""
        for key, _ in await self._counted(uid, limit):
            await self._client.call("ZREM", key, response_id)

    async def _counted(self, uid: str, limit: int) -> list[tuple[str, str]]:
        """Where this user's answers are counted."""
        allowance = await self._allowances.of(uid)
        counted = []
        if own_limit(allowance, limit):
            counted.append((self._of_user(uid), USER_ANSWERS))
        if allowance.group is not None:
            counted.append((self._keys.group_slots(allowance.group), GROUP_ANSWERS))
        return counted

    async def _slot(self, key: str, response_id: str, limit: int | None, quota: str) -> int:
        reply = await self._client.script(
            "take_slot", [key], response_id=response_id, limit=limit, life_ms=SLOT_MS
        )
        if reply[0] == b"full":
            raise NoSlot(reply[1], quota)
        return int(reply[1])

    def _of_user(self, uid: str) -> str:
        check_uid(uid)
        return self._keys.user_slots(uid)


def own_limit(allowance: Allowance, limit: int) -> int:
    """How many answers of one user may run: 0 means any number."""
    return limit if allowance.own.answers is None else allowance.own.answers
