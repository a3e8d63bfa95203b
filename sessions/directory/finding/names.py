"""`UserNames`: whose name holds a text, among all users.

Redis has no index of names. A worker whose operators look for one keeps all of them in memory: it
reads who is new each time, and everybody again once a minute, because names change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys

RENEW_SECONDS: Final = 60.0
READS_AT_ONCE: Final = 2_000
MAX_USERS: Final = 200_000  # the newest; one takes some 300 bytes


@dataclass(frozen=True, slots=True)
class NamedUser:
    """Whom an id stands for."""

    uid: str
    name: str


class UserNames:
    """One worker's. `built_in` are users that Redis does not know: id → name."""

    def __init__(
        self, client: RedisClient, keys: Keys, built_in: Mapping[str, str] | None = None
    ) -> None:
        self._client = client
        self._keys = keys
        self._built_in = built_in or {}
        self._names: dict[str, str] = {}
        self._read_at = float("-inf")
        self._newest = 0  # when the youngest of these was created
        self._lock = asyncio.Lock()

    async def find(self, text: str, limit: int) -> list[NamedUser]:
        """Up to so many, those whose name begins with the text first. Raises `StoreUnavailable`."""
        async with self._lock:
            await self._renew()
        wanted = text.casefold().strip()
        found = []
        for uid, name in [*self._built_in.items(), *self._names.items()]:
            place = name.casefold().find(wanted)
            if place >= 0:
                found.append((place > 0, len(name), name, uid))
        return [NamedUser(uid, name) for *_, name, uid in sorted(found)[:limit]]

    async def _renew(self) -> None:
        if time.monotonic() - self._read_at > RENEW_SECONDS:
            began = time.monotonic()
            self._names = await self._read(await self._ids(0))
            self._read_at = began
            return
        young = [uid for uid in await self._ids(self._newest) if uid not in self._names]
        self._names |= await self._read(young)
        number = min(MAX_USERS, int(await self._client.call("ZCARD", self._keys.users)))
        if number != len(self._names):  # somebody has gone
            everybody = set(await self._ids(0))
            self._names = {uid: name for uid, name in self._names.items() if uid in everybody}

    async def _ids(self, since: int) -> list[str]:
        """The newest users who were created then or later."""
        (entries,) = await self._client.read_each(
            [self._keys.users],
            *("ZRANGE", "+inf", since, "BYSCORE", "REV", "LIMIT", 0, MAX_USERS, "WITHSCORES"),
        )
        if entries:
            self._newest = int(entries[1])
        return [uid.decode() for uid in entries[::2]]

    async def _read(self, uids: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(uids), READS_AT_ONCE):
            some = uids[start : start + READS_AT_ONCE]
            names = await self._client.read_each(
                [self._keys.user_record(uid) for uid in some], "HGET", "name"
            )
            found |= {uid: (name or b"").decode() for uid, name in zip(some, names, strict=True)}
        return found
