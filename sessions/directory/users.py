"""Users as Redis has them: their records, the list of them, and what goes when one of them goes.

A change is announced to every worker, which then forgets what it knew of the user and closes the
sockets whose rights have changed. The announcement may be lost, so users of a record also read it
again every few seconds.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import orjson

from sessions.connection.client import Argument, RedisClient
from sessions.indexes.pages import cursor_of, newest_after, parse_cursor
from sessions.model.arguments import check_uid
from sessions.model.errors import IdempotencyKeyReused, TokenEnded, UserNotFound
from sessions.model.keys import USER_KEY_MS, Keys
from sessions.model.quotas import OwnQuotas
from sessions.store.context import PUBLISH
from sessions.store.quotas.allowances import OWN_FIELDS, own_quotas
from sessions.store.quotas.budgets import days_kept

ROLES: Final = ("user", "admin")
FIELDS: Final = ("name", "roles", "created_at", "disabled")  # of each user's record


@dataclass(frozen=True, slots=True)
class User:
    """A user's record. One who is disabled cannot come in."""

    uid: str
    name: str
    roles: tuple[str, ...]
    created_at: int
    disabled: bool = False
    group: str = ""  # whose quotas they share; "" if they are in none
    quotas: OwnQuotas = field(default_factory=OwnQuotas)


@dataclass(frozen=True, slots=True)
class UserPage:
    """Newest first; pass `next_cursor` on for older ones, None means no more."""

    users: tuple[User, ...]
    next_cursor: str | None


class Users:
    """The users. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def create(
        self, name: str, roles: Iterable[str] = ("user",), *, uid: str | None = None
    ) -> User:
        """A new user under a fresh id, or under `uid`."""
        user = User(uid or new_user_id(), name, tuple(roles), int(time.time() * 1000))
        # fmt: off
        await self._client.calls(
            ("ZADD", self._keys.users, user.created_at, user.uid),
            ("HSET", self._keys.user_record(user.uid), "name", name,
             "roles", " ".join(user.roles), "created_at", user.created_at, "disabled", ""),
        )
        # fmt: on
        return user

    async def create_once(
        self,
        uid: str,
        name: str,
        roles: Iterable[str],
        *,
        content: str,
        digest: str,
        expires_at: int | None = None,
    ) -> tuple[User, list[str]]:
        """The user whom `uid`, derived from an idempotency key, names: made now, or before.

        `digest` is that of the token that the caller has made for them, which enters their list. A
        repeat also gets those of the tokens before it. Raises `IdempotencyKeyReused` for another
        `content`, and once the key is forgotten; `TokenEnded` when the token before was revoked or
        has expired; `UserNotFound` when the user was removed since.
        """
        now = int(time.time() * 1000)
        names = self._keys
        keys = [of(uid) for of in (names.user_record, names.user_key, names.user_tokens)]
        # fmt: off
        *_, reply = await self._client.calls_in_order(
            ("ZADD", self._keys.users, "NX", now, uid),
            self._client.script_run(
                "create_user", keys,
                call_id=secrets.token_urlsafe(9), content=content, digest=digest,
                score="+inf" if expires_at is None else expires_at, now=now, life_ms=USER_KEY_MS,
                fields=["name", name, "roles", " ".join(roles), "created_at", now, "disabled", ""],
            ),
        )
        # fmt: on
        word, *rest = (part.decode() for part in reply)
        if word in ("ok", "replayed"):
            return await self.user(uid), rest[0].split() if rest else []
        if not await self._client.call("EXISTS", self._keys.user_record(uid)):
            await self._client.call("ZREM", self._keys.users, uid)
        if word == "ended":
            raise TokenEnded
        raise UserNotFound if word == "not_found" else IdempotencyKeyReused(uid)

    async def user(self, uid: str) -> User:
        """One user. Raises `UserNotFound`."""
        user = (await self.users([uid])).get(uid)
        if user is None:
            raise UserNotFound
        return user

    async def users(self, uids: Iterable[str]) -> dict[str, User]:
        """Those of these users that exist."""
        wanted = list(dict.fromkeys(uids))
        rows = await self._client.calls(
            *(
                ("HMGET", self._keys.user_record(uid), *FIELDS, "group", *OWN_FIELDS)
                for uid in wanted
            )
        )
        return {
            uid: _decode(uid, row)
            for uid, row in zip(wanted, rows, strict=True)
            if row[2] is not None
        }

    async def page(self, limit: int = 50, cursor: str | None = None) -> UserPage:
        """The newest users, or those after a cursor. Raises `InvalidCursor`."""
        places = await newest_after(
            self._client, [self._keys.users], parse_cursor(cursor), limit + 1
        )
        users = await self.users(uid for _, uid in places[:limit])
        more = cursor_of(places[limit - 1]) if len(places) > limit else None
        return UserPage(tuple(users.values()), more)

    async def update(
        self,
        uid: str,
        *,
        name: str | None = None,
        roles: Iterable[str] | None = None,
        disabled: bool | None = None,
        group: str | None = None,
        quotas: OwnQuotas | None = None,
    ) -> User:
        """Change what is given and announce it. Raises `UserNotFound`."""
        pairs: list[Argument] = []
        if name is not None:
            pairs += ["name", name]
        if roles is not None:
            pairs += ["roles", " ".join(roles)]
        if disabled is not None:
            pairs += ["disabled", "1" if disabled else ""]
        if group is not None:
            pairs += ["group", group]
        if quotas is not None:
            given = astuple(quotas)
            for field, number in zip(OWN_FIELDS, given, strict=True):
                pairs += [field, "" if number is None else number]
        check_uid(uid)
        reply = await self._client.script(
            "update_user", [self._keys.user_record(uid)], fields=pairs
        )
        if reply[0] != b"ok":
            raise UserNotFound
        await self.announce({"type": "user_changed", "uid": uid})
        return await self.user(uid)

    async def forget(self, uid: str) -> None:
        """Remove the record and every other key of the user, and announce it.

        Their sessions must be gone before, and their tokens be revoked. May be repeated.
        """
        check_uid(uid)
        user = (await self.users([uid])).get(uid)
        if user is not None and user.group:
            await self._client.call("ZREM", self._keys.group_members(user.group), uid)
        # fmt: off
        await self._client.calls(
            ("UNLINK", self._keys.user_record(uid)),
            ("UNLINK", self._keys.user_sessions(uid)),
            ("UNLINK", self._keys.user_hidden_sessions(uid)),
            ("UNLINK", self._keys.user_tokens(uid)),
            ("UNLINK", self._keys.user_login_codes(uid)),
            ("UNLINK", self._keys.user_slots(uid)),
            ("UNLINK", self._keys.user_presets(uid)),
            *(("UNLINK", self._keys.user_tokens_used(uid, day)) for day in days_kept()),
            ("ZREM", self._keys.users, uid),
        )
        # fmt: on
        await self.announce({"type": "user_changed", "uid": uid})

    async def announce(self, command: Mapping[str, Any]) -> None:
        """Tell every worker, this one included. It is not stored."""
        await self._client.call(PUBLISH, self._keys.system_channel, orjson.dumps(dict(command)))


def new_user_id() -> str:
    """A fresh random user id."""
    return "usr_" + secrets.token_urlsafe(16)


def _decode(uid: str, row: list[bytes | None]) -> User:
    name, roles, created_at, disabled, group = ((value or b"").decode() for value in row[:5])
    return User(
        uid,
        name,
        tuple(roles.split()),
        int(created_at),
        disabled == "1",
        group,
        own_quotas(row[5:]),
    )
