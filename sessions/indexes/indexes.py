"""The indexes: whose sessions there are, and which runs live. They are never the truth.

An index is in another slot than its data, so the two are never written atomically. It is written
before its data and cleaned after it: a crash leaves entries too many, which readers drop, and never
too few.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sessions.connection.client import Command, RedisClient
from sessions.indexes.pages import newest_after
from sessions.model.errors import StoreUnavailable
from sessions.model.ids import session_of
from sessions.model.keys import INDEX_GRACE_MS, SHARDS, Keys, shard_of

logger = logging.getLogger("parley.sessions")


class Indexes:
    """Commands that keep the indexes, and the questions that they answer."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def session(
        self, uid: str, session_id: str, updated_at: int, *, hidden: bool = False
    ) -> list[Command]:
        """Enter a session; a hidden one where its user's lists do not look."""
        index = self._keys.user_hidden_sessions if hidden else self._keys.user_sessions
        return [
            ("ZADD", index(uid), updated_at, session_id),
            ("ZADD", self._keys.all_sessions(session_id), updated_at, session_id),
        ]

    def without_session(self, uid: str, session_id: str) -> list[Command]:
        """Drop a session."""
        return [
            ("ZREM", self._keys.user_sessions(uid), session_id),
            ("ZREM", self._keys.user_hidden_sessions(uid), session_id),
            ("ZREM", self._keys.all_sessions(session_id), session_id),
        ]

    def run(self, response_id: str, lease_until: int) -> Command:
        """Enter a live run."""
        shard = shard_of(session_of(response_id))
        return ("ZADD", self._keys.live_runs(shard), lease_until, response_id)

    def runs(self, leases: Mapping[str, int]) -> list[Command]:
        """Enter live runs, response id → `lease_until`: one command for each shard."""
        shards = defaultdict[str, list[str | int]](list)
        for response_id, lease_until in leases.items():
            shards[shard_of(session_of(response_id))] += (lease_until, response_id)
        return [("ZADD", self._keys.live_runs(shard), *pairs) for shard, pairs in shards.items()]

    def without_run(self, response_id: str) -> Command:
        """Drop a run."""
        return ("ZREM", self._keys.live_runs(shard_of(session_of(response_id))), response_id)

    async def settle(self, commands: Sequence[Command]) -> None:
        """Bring an index up to date after its data; what was done stays done if that fails.

        Nobody waits for it where a later call cannot overtake it, on the one link of one server.
        """
        try:
            await self._client.send(*commands)
        except StoreUnavailable:
            logger.debug("index not updated", extra={"commands": len(commands)})

    async def sessions_after(
        self, uid: str, position: tuple[int, str] | None, count: int, *, hidden: bool = False
    ) -> list[tuple[int, str]]:
        """Up to `count` entries of a user's index that are older than `position`."""
        index = self._keys.user_hidden_sessions if hidden else self._keys.user_sessions
        return await newest_after(self._client, [index(uid)], position, count)

    async def expired_runs(self, lease_ms: int, limit: int) -> list[str]:
        """Runs whose entry is due, or so far ahead that Redis' clock must have jumped back."""
        now_ms = await self._client.now_ms()
        too_far = now_ms + 2 * lease_ms + INDEX_GRACE_MS
        # In any order, so that no shard always comes first.
        indexes = [self._keys.live_runs(shard) for shard in random.sample(SHARDS, len(SHARDS))]
        due, strange = await asyncio.gather(
            self._client.read_each(indexes, "ZRANGEBYSCORE", "-inf", now_ms, "LIMIT", 0, limit),
            self._client.read_each(indexes, "ZRANGEBYSCORE", too_far, "+inf", "LIMIT", 0, limit),
        )
        return [response_id.decode() for reply in due + strange for response_id in reply][:limit]

    async def live_runs(self) -> list[str]:
        """Every run in the index."""
        indexes = [self._keys.live_runs(shard) for shard in SHARDS]
        replies = await self._client.read_each(indexes, "ZRANGE", 0, -1)
        return [response_id.decode() for reply in replies for response_id in reply]


def local_ms() -> int:
    """This machine's clock, for index entries alone, where a few seconds do not matter."""
    return int(time.time() * 1000)
