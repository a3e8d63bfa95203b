"""Which workers there are: each reports every few seconds, and counts only while it does.

Nothing that must be right rests on this: who may write a run is decided by its lease and fence.
It shows an owner whether another worker could take over its answers, and operators who does what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys

LIFE_SECONDS: Final = 15.0  # since the last sign of life
LATE_SECONDS: Final = 8.0  # operators see one that was silent for so long as missing,
MEMORY_SECONDS: Final = 3600.0  # and for so long


@dataclass(frozen=True, slots=True)
class Replica:
    """A worker that was heard of lately, with what it said of itself."""

    id: str
    seen_at: int  # by Redis' clock, milliseconds since 1970
    figures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Roll:
    """Everybody who was heard of, in the order of their ids; `now_ms` is the moment of that.

    `present` are those that count as workers. `missing` fell silent and neither left nor were
    proved to be dead: they hang, or their host is gone. For some seconds a worker is both.
    """

    now_ms: int
    present: tuple[Replica, ...]
    missing: tuple[Replica, ...]


class Replicas:
    """Any method may raise `StoreUnavailable`."""

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        *,
        life_seconds: float = LIFE_SECONDS,
        late_seconds: float = LATE_SECONDS,
        memory_seconds: float = MEMORY_SECONDS,
    ) -> None:
        self._client = client
        self._keys = keys
        self._life_ms = int(life_seconds * 1000)
        self._late_ms = int(late_seconds * 1000)
        self._memory_ms = int(memory_seconds * 1000)

    async def beat(self, replica: str, figures: Mapping[str, str | int | float]) -> None:
        """A sign of life, always with the same figures."""
        key = self._keys.replica(replica)
        now_ms = await self._client.now_ms()
        pairs = [word for pair in figures.items() for word in pair]
        await self._client.calls(
            ("HSET", key, "seen_at", now_ms, *pairs),
            ("PEXPIRE", key, self._memory_ms),
            ("ZADD", self._keys.replicas, now_ms, replica),
            ("ZREMRANGEBYSCORE", self._keys.replicas, "-inf", now_ms - self._memory_ms),
        )

    async def leave(self, replica: str) -> None:
        """That worker has ended, or was proved to be dead."""
        await self._client.calls(
            ("DEL", self._keys.replica(replica)), ("ZREM", self._keys.replicas, replica)
        )

    async def all(self) -> list[Replica]:
        """Every worker that gave a sign of life lately, in the order of their ids."""
        return await self._seen_since(await self._client.now_ms() - self._life_ms)

    async def roll(self) -> Roll:
        """Those, and who is missing."""
        now_ms = await self._client.now_ms()
        known = await self._seen_since(now_ms - self._memory_ms)
        return Roll(
            now_ms,
            tuple(one for one in known if one.seen_at >= now_ms - self._life_ms),
            tuple(one for one in known if one.seen_at < now_ms - self._late_ms),
        )

    async def _seen_since(self, oldest: int) -> list[Replica]:
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
