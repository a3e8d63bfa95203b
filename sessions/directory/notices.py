"""The notice to all users: one at a time, until a moment that was given with it."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import orjson

from sessions.connection.client import RedisClient
from sessions.model.keys import Keys
from sessions.store.context import PUBLISH

Level = Literal["info", "warning"]

LEVELS: Final = get_args(Level)
ANNOUNCEMENT: Final = {"type": "notice"}  # to every worker: read it again


@dataclass(frozen=True, slots=True)
class Notice:
    """`until` and `created_at` by Redis' clock, milliseconds since 1970."""

    id: str
    level: Level
    text: str
    until: int
    created_at: int
    by: str  # a user id

    def wire(self) -> dict[str, Any]:
        """As clients get it: not by whom."""
        return {
            "id": self.id,
            "level": self.level,
            "text": self.text,
            "until": self.until,
            "created_at": self.created_at,
        }


class Notices:
    """Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def put(self, level: Level, text: str, life_seconds: int, by: str) -> Notice:
        """Show this one from now on, in the place of another; every worker is told."""
        now_ms = await self._client.now_ms()
        life_ms = life_seconds * 1000
        notice = Notice(new_notice_id(), level, text, now_ms + life_ms, now_ms, by)
        await self._client.call(
            "SET", self._keys.notice, orjson.dumps(asdict(notice)), "PX", life_ms
        )
        await self._announce()
        return notice

    async def current(self) -> Notice | None:
        """The one that is shown now."""
        stored = await self._client.call("GET", self._keys.notice)
        return None if stored is None else Notice(**orjson.loads(stored))

    async def remove(self) -> bool:
        """Show it no more; False if there is none."""
        removed = bool(await self._client.call("UNLINK", self._keys.notice))
        await self._announce()
        return removed

    async def _announce(self) -> None:
        await self._client.call(PUBLISH, self._keys.system_channel, orjson.dumps(ANNOUNCEMENT))


def new_notice_id() -> str:
    """A fresh random id, by which a browser knows what it has dismissed."""
    return "ntc_" + secrets.token_urlsafe(9)
