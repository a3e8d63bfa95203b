"""The audit log: who did or read what as an admin, from where, and why.

An entry is written before the deed: what cannot be noted is not done.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

import orjson

from sessions.connection.client import RedisClient
from sessions.model.errors import InvalidCursor
from sessions.model.keys import Keys

MAX_ENTRIES: Final = 1_000_000
MAX_EXAMINED: Final = 2_000  # that one page looks at for a filter, in chunks
CHUNK_ENTRIES: Final = 500

_CURSOR: Final = re.compile(r"\d{1,15}-\d{1,15}\Z")
# How older versions have noted what became of a user: in Python's words.
_OLD_ROLES: Final = re.compile(r"(?<!\S)roles=\(([a-z', ]*)\)(?!\S)")
_OLD_DISABLED: Final = re.compile(r"(?<!\S)disabled=(True|False)(?!\S)")


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


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """None: any. An action that ends with `*` stands for all that begin so; moments in ms."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: int | None = None
    until: int | None = None

    def lets(self, entry: AuditEntry) -> bool:
        action = self.action
        if action is not None and action.endswith("*"):
            is_action = entry.action.startswith(action[:-1])
        else:
            is_action = action in (None, entry.action)
        return (
            is_action and self.actor in (None, entry.actor) and self.target in (None, entry.target)
        )


EVERYTHING: Final = AuditFilter()


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

    async def page(
        self,
        limit: int = 50,
        cursor: str | None = None,
        wanted: AuditFilter = EVERYTHING,
    ) -> AuditPage:
        """The newest entries, or those after a cursor. Raises `InvalidCursor`.

        With a filter that fits few of them a page may be short, with a cursor.
        """
        if cursor is not None and not _CURSOR.match(cursor):
            raise InvalidCursor("malformed cursor")
        newest = "+" if wanted.until is None else f"{wanted.until}"
        position = newest if cursor is None else f"({cursor}"
        oldest = "-" if wanted.since is None else f"{wanted.since}"
        found: list[AuditEntry] = []
        last, num_examined = "", 0
        while num_examined < MAX_EXAMINED:
            count = min(CHUNK_ENTRIES, MAX_EXAMINED - num_examined)
            rows = await self._client.call(
                "XREVRANGE", self._keys.audit, position, oldest, "COUNT", count
            )
            for name, fields in rows:
                if len(found) == limit:
                    return AuditPage(tuple(found), last)
                last = name.decode()
                if wanted.lets(entry := _decode(name, fields)):
                    found.append(entry)
            if len(rows) < count:
                return AuditPage(tuple(found), None)
            num_examined += len(rows)
            position = f"({last}"
        return AuditPage(tuple(found), last)


def _decode(name: bytes, fields: list[bytes]) -> AuditEntry:
    texts = [field.decode() for field in fields]
    row = dict(zip(texts[::2], texts[1::2], strict=True))
    row.pop("call", None)
    row["reason"] = in_todays_words(row["action"], row["reason"])
    return AuditEntry(id=name.decode(), at=int(name.split(b"-")[0]), **row)


def in_todays_words(action: str, reason: str) -> str:
    """What an older version has noted of a change, as this one would: `roles=["user"]`."""
    if action != "user.update" or reason.startswith('name="'):
        return reason  # in which a name may say anything
    reason = _OLD_ROLES.sub(
        lambda old: f"roles={orjson.dumps(re.findall('[a-z]+', old[1])).decode()}", reason
    )
    return _OLD_DISABLED.sub(lambda old: f"disabled={old[1].lower()}", reason)
