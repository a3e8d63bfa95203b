"""The store's part for the sessions of groups: how many all members keep together.

The index of a group is in another slot than its members' sessions. It is written before a session
is made and cleaned after one has gone; entries of sessions that have expired are dropped by the
walk over all indexes, and by a caller that finds a group full.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

from sessions.connection.client import Command
from sessions.indexes.indexes import local_ms
from sessions.indexes.pages import Place, newest_after
from sessions.model.errors import QuotaExceeded
from sessions.model.keys import INDEX_GRACE_MS
from sessions.model.quotas import GROUP_SESSIONS
from sessions.store.context import StoreContext
from sessions.store.quotas.allowances import Allowances

CHUNK: Final = 500  # entries that are looked at, or moved, at once
LOOK_SECONDS: Final = 10.0  # between two looks at all sessions of one group that is full


class GroupSessions:
    """Any method may raise `StoreUnavailable`."""

    def __init__(self, context: StoreContext, allowances: Allowances) -> None:
        self._client = context.client
        self._keys = context.keys
        self._indexes = context.indexes
        self._allowances = allowances
        self._looked: dict[str, float] = {}

    async def max_of_user(self, uid: str, most: int) -> int:
        """How many this user may keep; `most` is for those who have no other limit."""
        own = (await self._allowances.of(uid)).own.sessions
        return most if own is None else own

    async def reserve(self, uid: str, session_id: str) -> None:
        """Enter a session of this user's into the group's index. Raises `QuotaExceeded`."""
        allowance = await self._allowances.read(uid)
        if allowance.group is None:
            return
        most = allowance.shared.sessions
        keys = self._keys
        index, record = keys.group_sessions(allowance.group), keys.group_record(allowance.group)
        for is_last_try in (False, True):
            reply = await self._client.script(
                "enter_group",
                [index, record],
                session_id=session_id,
                updated_at=local_ms(),
                max_sessions=most,
            )
            if reply[0] == b"ok":
                return
            if is_last_try or not await self._drop_stale(allowance.group):
                break
        raise QuotaExceeded("sessions of the group", most, quota=GROUP_SESSIONS)

    async def leave(self, uid: str, session_id: str) -> None:
        """That session of this user's has gone."""
        group = (await self._allowances.read(uid)).group
        if group is not None:
            await self._indexes.settle([("ZREM", self._keys.group_sessions(group), session_id)])

    async def bring(self, group: str, uid: str) -> None:
        """Enter all that a new member keeps, also beyond the group's limit."""
        index = self._keys.group_sessions(group)
        async for places in self._of_user(uid):
            words = [word for at, session_id in places for word in (at, session_id)]
            await self._client.call("ZADD", index, *words)

    async def take_out(self, group: str, uid: str) -> None:
        """Drop all that somebody keeps who is no member any more."""
        index = self._keys.group_sessions(group)
        async for places in self._of_user(uid):
            await self._client.call("ZREM", index, *(session_id for _, session_id in places))

    async def _of_user(self, uid: str) -> AsyncIterator[list[Place]]:
        for index in (self._keys.user_sessions(uid), self._keys.user_hidden_sessions(uid)):
            position: Place | None = None
            while places := await newest_after(self._client, [index], position, CHUNK):
                position = places[-1]
                yield places

    async def _drop_stale(self, group: str) -> bool:
        """Look at all of a group's entries; whether there were some without a session."""
        now = time.monotonic()
        if now - self._looked.get(group, -LOOK_SECONDS) < LOOK_SECONDS:
            return False
        self._looked[group] = now
        index = self._keys.group_sessions(group)
        oldest, was_stale = local_ms() - INDEX_GRACE_MS, False
        position: Place | None = None
        while places := await newest_after(self._client, [index], position, CHUNK):
            position = places[-1]
            keys = [self._keys.session(session_id, "m") for _, session_id in places]
            found = await self._client.read_each(keys, "EXISTS")
            stale: list[Command] = [
                ("ZREM", index, session_id)
                for (updated_at, session_id), exists in zip(places, found, strict=True)
                if not exists and updated_at < oldest
            ]
            if stale:
                was_stale = True
                await self._client.calls(*stale)
        return was_stale
