"""The audit log: who did or read what as an admin, from where, and why.

An entry is written before the deed: what cannot be noted is not done.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.errors import InvalidCursor
from sessions.model.keys import Keys

MAX_ENTRIES: Final = 1_000_000

_CURSOR: Final = re.compile(r"\d{1,15}-\d{1,15}\Z")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`at` by Redis' clock. `target` is the id of what it was done to."""

    id: str
    at: int
    actor: str
    action: str
    target: str
    reason: str
    address: str


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Newest first; pass `next_cursor` on for older ones, None means no more."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


class AuditLog:
    """Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def write(
        self, *, actor: str, action: str, target: str = "", reason: str = "", address: str = ""
    ) -> None:
        """Return when the entry is stored, once, even if a reply was lost on the way."""
        fields = {
            "actor": actor,
            "action": action,
            "target": target,
            "reason": reason,
            "address": address,
        }
        pairs = [part for pair in fields.items() for part in pair]
        call_id = secrets.token_urlsafe(9)
        await self._client.script(
            "append_audit",
            [self._keys.audit],
            call_id=call_id,
            max_entries=MAX_ENTRIES,
            fields=pairs,
        )

    async def page(self, limit: int = 50, cursor: str | None = None) -> AuditPage:
        """The newest entries, or those after a cursor. Raises `InvalidCursor`."""
        if cursor is not None and not _CURSOR.match(cursor):
            raise InvalidCursor("malformed cursor")
        newest = "+" if cursor is None else f"({cursor}"
        rows = await self._client.call(
            "XREVRANGE", self._keys.audit, newest, "-", "COUNT", limit + 1
        )
        entries = tuple(_decode(name, fields) for name, fields in rows[:limit])
        return AuditPage(entries, entries[-1].id if len(rows) > limit else None)


def _decode(name: bytes, fields: list[bytes]) -> AuditEntry:
    texts = [field.decode() for field in fields]
    row = dict(zip(texts[::2], texts[1::2], strict=True))
    row.pop("call", None)
    return AuditEntry(id=name.decode(), at=int(name.split(b"-")[0]), **row)
