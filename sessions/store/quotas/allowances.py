"""The store's part for what each user may: quotas of their own, and the group that they share in.

They are known for a few seconds, so that an answer need not wait for them: a change counts at once
at the worker that has made it, and at all others within these seconds.
"""

from __future__ import annotations

import time
from typing import Final

from sessions.connection.client import RedisClient
from sessions.model.ids import is_group_id, is_user_id
from sessions.model.keys import Keys
from sessions.model.quotas import Allowance, GroupQuotas, OwnQuotas

KNOWN_SECONDS: Final = 3.0
MAX_KNOWN: Final = 10_000  # users, and groups; then all are read again

OWN_FIELDS: Final = ("q_tokens_per_day", "q_sessions", "q_answers")  # of a user's record
SHARED_FIELDS: Final = ("tokens_per_day", "sessions", "answers")  # of a group's record


class Allowances:
    """Of one worker. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._users: dict[str, tuple[float, OwnQuotas, str]] = {}
        self._groups: dict[str, tuple[float, GroupQuotas | None]] = {}

    async def of(self, uid: str) -> Allowance:
        """What this user may. Those that are built in have no quotas of their own, and no group."""
        if not is_user_id(uid):
            return Allowance()
        known = self._users.get(uid)
        if known is None or time.monotonic() - known[0] >= KNOWN_SECONDS:
            known = await self._read_user(uid)
        _, own, group = known
        if not is_group_id(group) or (shared := await self.of_group(group)) is None:
            return Allowance(own)
        return Allowance(own, group, shared)

    async def read(self, uid: str) -> Allowance:
        """Likewise, by Redis and not by memory."""
        self._users.pop(uid, None)
        return await self.of(uid)

    async def of_group(self, gid: str) -> GroupQuotas | None:
        """What the members of this group share; None if it is gone."""
        known = self._groups.get(gid)
        if known is None or time.monotonic() - known[0] >= KNOWN_SECONDS:
            known = await self._read_group(gid)
        return known[1]

    async def _read_user(self, uid: str) -> tuple[float, OwnQuotas, str]:
        at = time.monotonic()
        gid, *row = await self._client.call(
            "HMGET", self._keys.user_record(uid), "group", *OWN_FIELDS
        )
        if len(self._users) >= MAX_KNOWN:
            self._users.clear()
        known = at, own_quotas(row), (gid or b"").decode()
        self._users[uid] = known
        return known

    async def _read_group(self, gid: str) -> tuple[float, GroupQuotas | None]:
        at = time.monotonic()
        created_at, *row = await self._client.call(
            "HMGET", self._keys.group_record(gid), "created_at", *SHARED_FIELDS
        )
        if len(self._groups) >= MAX_KNOWN:
            self._groups.clear()
        known = at, None if created_at is None else group_quotas(row)
        self._groups[gid] = known
        return known

    def forget(self) -> None:
        """Quotas or groups have changed."""
        self._users.clear()
        self._groups.clear()


def own_quotas(row: list[bytes | None]) -> OwnQuotas:
    """Of the fields of a user's record."""
    return OwnQuotas(*(int(value) if value else None for value in row))


def group_quotas(row: list[bytes | None]) -> GroupQuotas:
    """Of the fields of a group's record."""
    return GroupQuotas(*(int(value or 0) for value in row))
