"""Which workers there are: each says so every few seconds, and is forgotten when it does not.

Nothing that must be right rests on this: who may write a run is decided by its lease and fence.
It tells an owner whether anybody could take its answers over, and operators who does what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sessions.client import RedisClient
from sessions.keys import Keys

LIFE_SECONDS: Final = 15.0  # since the last sign of life


@dataclass(frozen=True, slots=True)
class Replica:
    """A worker that was heard of lately, with what it said of itself."""

    id: str
    seen_at: int  # by Redis' clock, milliseconds since 1970
    figures: Mapping[str, str]


class Replicas:
    """Any method may raise `StoreUnavailable`."""

    def __init__(
        self, client: RedisClient, keys: Keys, *, life_seconds: float = LIFE_SECONDS
    ) -> None:
        self._client = client
        self._keys = keys
        self._life_ms = int(life_seconds * 1000)

    async def beat(self, replica: str, figures: Mapping[str, str | int | float]) -> None:
        """A sign of life, always with the same figures."""
        key = self._keys.replica(replica)
        now_ms = await self._client.now_ms()
        pairs = [word for pair in figures.items() for word in pair]
        await self._client.calls(
            ("HSET", key, "seen_at", now_ms, *pairs),
            ("PEXPIRE", key, self._life_ms),
            ("ZADD", self._keys.replicas, now_ms, replica),
            ("ZREMRANGEBYSCORE", self._keys.replicas, "-inf", now_ms - self._life_ms),
        )

    async def leave(self, replica: str) -> None:
        """That worker has ended, or was proved to be dead."""
        await self._client.calls(
            ("DEL", self._keys.replica(replica)), ("ZREM", self._keys.replicas, replica)
        )

    async def all(self) -> list[Replica]:
        """Every worker that gave a sign of life lately, in the order of their ids."""
        oldest = await self._client.now_ms() - self._life_ms
        names = await self._client.call("ZRANGEBYSCORE", self._keys.replicas, oldest, "+inf")
        ids = sorted(name.decode() for name in names)
        if not ids:
            return []
        rows = await self._client.calls(*(("HGETALL", self._keys.replica(id)) for id in ids))
        found = []
        for replica, row in zip(ids, rows, strict=True):
            figures = {name.decode(): value.decode() for name, value in row.items()}
            if seen_at := figures.pop("seen_at", None):
                found.append(Replica(replica, int(seen_at), figures))
        return found
