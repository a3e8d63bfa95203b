"""`UserNames`: whose name holds a text, among all users.

Redis has no index of names, so each worker keeps all of them in memory. It reads them when it
starts, since that takes longer than a search may. Then it reads who is new, and whoever is said to
have changed, before each search. What is said may be lost: while somebody searches, everybody is
read again once a minute, beside the searches.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame, LivePayload
from sessions.model.keys import Keys

RENEW_SECONDS: Final = 60.0
READS_AT_ONCE: Final = 2_000
MAX_USERS: Final = 200_000  # the newest; one takes some 300 bytes
MAX_READ_AT_START: Final = 50_000  # of more the first search reads them, if there ever is one


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
        self._newest = 0  # when the youngest of these was created
        self._read_at: float | None = None
        self._changed: set[str] = set()  # who may have another name than the one here
        self._meanwhile: set[str] = set()  # likewise, since everybody began to be read
        self._due = asyncio.Event()
        self._reading, self._learning = asyncio.Lock(), asyncio.Lock()

    async def find(self, text: str, limit: int) -> list[NamedUser]:
        """Up to so many, those whose name begins with the text first. Raises `StoreUnavailable`."""
        await self._bring_up_to_date()
        wanted = folded(text).strip()
        found = []
        for uid, name in self._everybody():
            place = folded(name).find(wanted)
            if place >= 0:
                found.append((place > 0, len(name), name, uid))
        return [NamedUser(uid, name) for *_, name, uid in sorted(found)[:limit]]

    async def same(self, name: str) -> list[str]:
        """The ids of those whose name looks the same, in any case. Raises `StoreUnavailable`."""
        await self._bring_up_to_date()
        wanted = folded(name)
        return [uid for uid, other in self._everybody() if folded(other) == wanted]

    def _everybody(self) -> Iterator[tuple[str, str]]:
        yield from self._built_in.items()
        yield from self._names.items()

    # ---- what has changed -----------------------------------------------------------------------

    def on_announcement(self, payload: LivePayload) -> None:
        """A message to all workers says who has changed."""
        match payload:
            case LiveFrame({"type": "user_changed", "uid": str(uid)}):
                self._changed.add(uid)
                self._meanwhile.add(uid)

    def on_resync(self) -> None:
        """Messages were lost for a while: anybody may have changed."""
        if self._read_at is not None:
            self._due.set()

    async def keep_forever(self) -> None:
        """Read everybody at the start, and again when that is due."""
        with contextlib.suppress(StoreUnavailable):
            if await self._count() <= MAX_READ_AT_START:
                self._due.set()
        while True:
            await self._due.wait()
            self._due.clear()
            with contextlib.suppress(StoreUnavailable):  # the next search, or the next resync
                async with self._reading:
                    await self._read_everybody()

    async def _bring_up_to_date(self) -> None:
        if self._read_at is None:
            async with self._reading:
                if self._read_at is None:
                    await self._read_everybody()
        elif time.monotonic() - self._read_at > RENEW_SECONDS:
            self._due.set()
        async with self._learning:
            await self._learn()

    async def _read_everybody(self) -> None:
        began = time.monotonic()
        self._meanwhile.clear()
        uids, newest = await self._ids(0)
        names = await self._read(uids)
        self._names, self._newest, self._read_at = names, newest, began
        self._changed |= self._meanwhile

    async def _learn(self) -> None:
        """Read who is new, and who has changed."""
        changed, self._changed = self._changed, set()
        try:
            uids, newest = await self._ids(self._newest)
            names = await self._read([*changed, *(uid for uid in uids if uid not in self._names)])
        except BaseException:
            self._changed |= changed
            raise
        self._names |= names
        self._newest = max(newest, self._newest)
        for uid in changed:
            if not names[uid]:
                self._names.pop(uid, None)
        if min(MAX_USERS, await self._count()) != len(self._names):
            await self._compare()

    async def _compare(self) -> None:
        """Somebody has gone, or came at a worker whose clock is behind."""
        uids, _ = await self._ids(0)
        missing = await self._read([uid for uid in uids if uid not in self._names])
        names = self._names | missing
        self._names = {uid: names[uid] for uid in uids if uid in names}

    # ---- Redis ----------------------------------------------------------------------------------

    async def _count(self) -> int:
        return int(await self._client.call("ZCARD", self._keys.users))

    async def _ids(self, since: int) -> tuple[list[str], int]:
        """The newest users who were created then or later, and when the youngest was."""
        (entries,) = await self._client.read_each(
            [self._keys.users],
            *("ZRANGE", "+inf", since, "BYSCORE", "REV", "LIMIT", 0, MAX_USERS, "WITHSCORES"),
        )
        return [uid.decode() for uid in entries[::2]], int(entries[1]) if entries else 0

    async def _read(self, uids: Sequence[str]) -> dict[str, str]:
        """Their names; "" of who is gone."""
        found: dict[str, str] = {}
        for start in range(0, len(uids), READS_AT_ONCE):
            some = uids[start : start + READS_AT_ONCE]
            names = await self._client.read_each(
                [self._keys.user_record(uid) for uid in some], "HGET", "name"
            )
            found |= {uid: (name or b"").decode() for uid, name in zip(some, names, strict=True)}
        return found


def folded(name: str) -> str:
    """Without case, what takes no room, and what Unicode writes in several ways."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name)
        if not name.isprintable():
            name = "".join(one for one in name if unicodedata.category(one) != "Cf")
    return name.casefold()
