"""`IndexSweep`: drops index entries whose session has expired, a few at a time, for ever.

A session expires silently, and the indexes are in other slots than their sessions. Readers of a
list drop the stale entries they meet; a walk finds those that nobody reads, in steps that cost the
same however many sessions there are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from sessions.connection.client import RedisClient
from sessions.indexes.indexes import local_ms
from sessions.indexes.pages import Place, newest_after
from sessions.model.keys import INDEX_GRACE_MS, SHARDS, Keys

STEP_ENTRIES: Final = 100
USERS_AT_ONCE: Final = 100
MAX_GROUPS: Final = 1000  # the newest, whose sessions are walked over; others' go when one is full


class IndexSweep:
    """One walk over the shards of all sessions, then over the sessions of every user.

    `uids` are users that no index of users holds. With `idle_seconds` only entries are looked at
    whose session was not changed for so long.
    """

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        *,
        idle_seconds: float = 0.0,
        uids: Iterable[str] = (),
    ) -> None:
        self._client = client
        self._keys = keys
        self._youngest_ms = max(int(idle_seconds * 1000), INDEX_GRACE_MS)
        self._uids = tuple(uids)
        self._indexes: list[str] = []  # still to be walked; the last one is at work
        self._position: Place | None = None  # in that one, walked from its newest entries
        self._user: Place | None = None  # the last one whose index was entered, among all users

    async def step(self) -> int:
        """Look at up to a hundred entries; returns how many were dropped.

        Raises `StoreUnavailable`; the next step looks at the same ones again.
        """
        if not self._indexes:
            self._indexes = await self._next_indexes()
        index = self._indexes[-1]
        start = self._position or (local_ms() - self._youngest_ms, "")
        places = await newest_after(self._client, [index], start, STEP_ENTRIES)
        stale = await self._without_session(places)
        if stale:
            words = [word for updated_at, session_id in stale for word in (session_id, updated_at)]
            await self._client.script("drop_entries", [index], entries=words)
        if len(places) == STEP_ENTRIES:
            self._position = places[-1]
        else:
            self._position = None
            self._indexes.pop()
        return len(stale)

    async def _without_session(self, places: list[Place]) -> list[Place]:
        keys = [self._keys.session(session_id, "m") for _, session_id in places]
        found = await self._client.read_each(keys, "EXISTS")
        return [place for place, exists in zip(places, found, strict=True) if not exists]

    async def _next_indexes(self) -> list[str]:
        """Those of the next users, or groups and shards again when every user had their turn."""
        users = await newest_after(self._client, [self._keys.users], self._user, USERS_AT_ONCE)
        if users:
            self._user = users[-1]
            return [index for _, uid in users for index in self._of_user(uid)]
        self._user = None
        shards = random.sample(SHARDS, len(SHARDS))  # several workers walk, each its own way
        groups = await newest_after(self._client, [self._keys.groups], None, MAX_GROUPS)
        return [
            *(self._keys.group_sessions(gid) for _, gid in groups),
            *(index for uid in self._uids for index in self._of_user(uid)),
            *(self._keys.sessions_shard(shard) for shard in shards),
        ]

    def _of_user(self, uid: str) -> list[str]:
        return [self._keys.user_sessions(uid), self._keys.user_hidden_sessions(uid)]
