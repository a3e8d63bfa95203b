"""Groups of users, who share quotas: their records, the list of them, and who is in which.

A user is in one group at most, which their record names; the index of members only lists them. A
change counts at once at the worker that makes it, and within seconds at all others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from typing import Final

from sessions.connection.client import Argument, RedisClient
from sessions.directory.finding.names import folded
from sessions.directory.users import User, Users
from sessions.indexes.pages import cursor_of, newest_after, parse_cursor
from sessions.model.errors import GroupNotFound, QuotaExceeded, UserNotFound
from sessions.model.ids import is_group_id
from sessions.model.keys import Keys
from sessions.model.quotas import GroupQuotas, OwnQuotas
from sessions.store.quotas.allowances import SHARED_FIELDS, Allowances, group_quotas
from sessions.store.quotas.group_sessions import GroupSessions

MAX_MEMBERS: Final = 10_000
MEMBERS_AT_ONCE: Final = 200  # of a group that is removed
NAMES_AT_ONCE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Group:
    """A group's record."""

    gid: str
    name: str
    created_at: int
    quotas: GroupQuotas


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Newest first; pass `next_cursor` on for older ones, None means no more."""

    groups: tuple[Group, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class MemberPage:
    """Those who came last come first."""

    users: tuple[User, ...]
    next_cursor: str | None


class Groups:
    """The groups. Any method may raise `StoreUnavailable`."""

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        users: Users,
        allowances: Allowances,
        sessions: GroupSessions,
    ) -> None:
        self._client = client
        self._keys = keys
        self._users = users
        self._allowances = allowances
        self._sessions = sessions

    async def create(self, name: str, quotas: GroupQuotas, *, gid: str | None = None) -> Group:
        """A new group under a fresh id, or under `gid`."""
        group = Group(gid or new_group_id(), name, int(time.time() * 1000), quotas)
        pairs = [word for pair in asdict(quotas).items() for word in pair]
        record = self._keys.group_record(group.gid)
        await self._client.calls(
            ("ZADD", self._keys.groups, group.created_at, group.gid),
            ("HSET", record, "name", name, "created_at", group.created_at, *pairs),
        )
        return group

    async def group(self, gid: str) -> Group:
        """One group. Raises `GroupNotFound`."""
        found = await self.groups([gid]) if is_group_id(gid) else []
        if not found:
            raise GroupNotFound
        return found[0]

    async def groups(self, gids: Iterable[str]) -> list[Group]:
        """Those of these groups that exist."""
        wanted = list(gids)
        rows = await self._client.calls(
            *(
                ("HMGET", self._keys.group_record(gid), "name", "created_at", *SHARED_FIELDS)
                for gid in wanted
            )
        )
        return [
            Group(gid, (row[0] or b"").decode(), int(row[1]), group_quotas(row[2:]))
            for gid, row in zip(wanted, rows, strict=True)
            if row[1] is not None
        ]

    async def page(self, limit: int = 50, cursor: str | None = None) -> GroupPage:
        """The newest groups, or those after a cursor. Raises `InvalidCursor`."""
        places = await newest_after(
            self._client, [self._keys.groups], parse_cursor(cursor), limit + 1
        )
        groups = await self.groups(gid for _, gid in places[:limit])
        more = cursor_of(places[limit - 1]) if len(places) > limit else None
        return GroupPage(tuple(groups), more)

    async def find(self, text: str, limit: int) -> tuple[list[Group], int]:
        """Groups whose name holds the text, in any case, and how many there are; or that of an id.

        Up to so many, those whose name begins with it first. Reads every name each time: nobody
        has as many groups as users.
        """
        if is_group_id(text):
            known = await self.groups([text])
            return known, len(known)
        wanted, found = folded(text).strip(), []
        async for gid, name in self._names():
            place = folded(name).find(wanted)
            if place >= 0:
                found.append((place > 0, len(name), name, gid))
        best = sorted(found)[:limit]
        return await self.groups(gid for *_, gid in best), len(found)

    async def _names(self) -> AsyncIterator[tuple[str, str]]:
        entries = await self._client.call("ZRANGE", self._keys.groups, 0, -1, "REV")
        gids = [gid.decode() for gid in entries]
        for start in range(0, len(gids), NAMES_AT_ONCE):
            some = gids[start : start + NAMES_AT_ONCE]
            records = [self._keys.group_record(gid) for gid in some]
            names = await self._client.read_each(records, "HGET", "name")
            for gid, name in zip(some, names, strict=True):
                yield gid, (name or b"").decode()

    async def update(
        self, gid: str, *, name: str | None = None, quotas: GroupQuotas | None = None
    ) -> Group:
        """Change what is given. Raises `GroupNotFound`."""
        pairs: list[Argument] = [] if name is None else ["name", name]
        if quotas is not None:
            pairs += [word for pair in asdict(quotas).items() for word in pair]
        reply = await self._client.script(
            "update_user", [self._keys.group_record(gid)], fields=pairs
        )
        if reply[0] != b"ok":
            raise GroupNotFound
        self._allowances.forget()
        return await self.group(gid)

    async def remove(self, gid: str) -> None:
        """The members stay users, without a group. May be repeated after a failure."""
        while members := (await self.members(gid, MEMBERS_AT_ONCE)).users:
            for user in members:
                await self.leave(gid, user.uid)
        await self._client.calls(
            ("UNLINK", self._keys.group_record(gid)),
            ("UNLINK", self._keys.group_members(gid)),
            ("UNLINK", self._keys.group_tokens(gid)),
            ("UNLINK", self._keys.group_slots(gid)),
            ("UNLINK", self._keys.group_sessions(gid)),
            ("ZREM", self._keys.groups, gid),
        )
        self._allowances.forget()

    # ---- members --------------------------------------------------------------------------------

    async def members(self, gid: str, limit: int = 50, cursor: str | None = None) -> MemberPage:
        """Who is in it; entries of users who are gone, or elsewhere by now, are dropped."""
        index = self._keys.group_members(gid)
        places = await newest_after(self._client, [index], parse_cursor(cursor), limit + 1)
        found = await self._users.users(uid for _, uid in places[:limit])
        members = [user for user in found.values() if user.group == gid]
        standing = {user.uid for user in members}
        stale = [uid for _, uid in places[:limit] if uid not in standing]
        if stale:
            await self._client.call("ZREM", index, *stale)
        more = cursor_of(places[limit - 1]) if len(places) > limit else None
        return MemberPage(tuple(members), more)

    async def join(self, gid: str, uid: str) -> None:
        """Make somebody a member, who leaves the group that they were in.

        Raises `GroupNotFound`, `UserNotFound`, and `QuotaExceeded` for one member too many.
        """
        group = await self.group(gid)
        user = await self._users.user(uid)
        index = self._keys.group_members(gid)
        if await self._client.call("ZCARD", index) >= MAX_MEMBERS:
            raise QuotaExceeded("members of a group", MAX_MEMBERS)
        await self._client.call("ZADD", index, int(time.time() * 1000), uid)
        await self._users.update(uid, group=gid)
        self._allowances.forget()
        if user.group and user.group != gid:
            await self._client.call("ZREM", self._keys.group_members(user.group), uid)
            await self._sessions.take_out(user.group, uid)
        await self._sessions.bring(group.gid, uid)

    async def leave(self, gid: str, uid: str) -> None:
        """Somebody is no member any more. Raises `UserNotFound` for one who is none."""
        user = await self._users.user(uid)
        if user.group != gid:
            raise UserNotFound
        await self._users.update(uid, group="")
        self._allowances.forget()
        await self._client.call("ZREM", self._keys.group_members(gid), uid)
        await self._sessions.take_out(gid, uid)

    async def limit_user(self, uid: str, quotas: OwnQuotas) -> None:
        """Quotas of one user's own; None for those of the server. Raises `UserNotFound`."""
        await self._users.update(uid, quotas=quotas)
        self._allowances.forget()


def new_group_id() -> str:
    """A fresh random group id."""
    return "grp_" + secrets.token_urlsafe(16)
