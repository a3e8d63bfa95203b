"""Credentials: tokens, cookies, login codes and websocket tickets.

Redis holds SHA-256 digests, never a secret itself: nobody who reads the database can log in.
Secrets in a URL (login codes, tickets) work once and for minutes or seconds. What a credential
creates names it, and ends with it: a ticket stands for it, and a login code and its cookie remember
it as `minted_by`.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import orjson

from sessions.connection.client import Argument, Command, RedisClient
from sessions.model.keys import (
    COOKIE_IDLE_MS,
    EXPIRED_TOKEN_MS,
    LOGIN_CODE_SECONDS,
    TICKET_SECONDS,
    USER_KEY_MS,
    Keys,
)
from sessions.store.context import PUBLISH

SECRET_BYTES: Final = 32  # 256 bits: a digest needs no salt, guessing no limit
MAX_SECRET_CHARACTERS: Final = 512  # more was never ours, and is not worth a hash

_FIELDS: Final = ("uid", "scopes", "kind", "expires_at", "created_at", "minted_by", "purpose")
# Workers of older versions read tickets too, and know no other field.
_TICKET_FIELDS: Final = ("uid", "scopes", "kind", "expires_at", "digest", "created_at")

CredentialKind = Literal["token", "cookie"]


@dataclass(frozen=True, slots=True)
class Credential:
    """What a token, cookie or ticket stands for. `digest` names it in revocations."""

    uid: str
    scopes: tuple[str, ...]
    kind: str
    expires_at: int | None
    digest: str
    created_at: int = 0
    # Of a cookie: the digest of its user's token that made its login code, without which it is
    # worth nothing; "" if there was none. None: an older version stored it.
    minted_by: str | None = field(default=None, compare=False)
    purpose: str = field(default="", compare=False)  # of a token: what an admin has said

    @property
    def has_expired(self) -> bool:
        """Whether it was good until a moment that has passed."""
        return self.expires_at is not None and self.expires_at <= time.time() * 1000


@dataclass(frozen=True, slots=True)
class LoginCode:
    """The user of a login code, and the credential that made it, which must still hold.

    `minted_by` is that credential's digest, None for a code that an older version stored;
    `minter` is its user.
    """

    uid: str
    minted_by: str | None = None
    minter: str = ""
    expires_at: int | None = None  # when the credential that made it does

    @property
    def is_own(self) -> bool:
        """Whether its user made it: then their cookie depends on their token, as the code does."""
        return self.uid == self.minter

    def lifetime(self, most_seconds: float) -> float:
        """How long its cookie works, in seconds: no longer than the token that it depends on."""
        if self.expires_at is None or not self.is_own:
            return most_seconds
        return min(most_seconds, self.expires_at / 1000 - time.time())


class Credentials:
    """Credentials in Redis. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    # ---- tokens and cookies ----------------------------------------------------------------------

    async def create_cookie(
        self,
        uid: str,
        lifetime_seconds: float,
        *,
        scopes: Iterable[str] = (),
        minted_by: str = "",
    ) -> str:
        """A fresh cookie value for this user; only its digest is stored.

        It ends with its lifetime, or after `COOKIE_IDLE_MS` without `touch`. `minted_by` is the
        digest of the token that it depends on.
        """
        raw = secrets.token_urlsafe(SECRET_BYTES)
        await self._store(raw, uid, "cookie", scopes, lifetime_seconds, minted_by)
        return raw

    async def create_token(
        self,
        uid: str,
        lifetime_seconds: float | None = None,
        *,
        scopes: Iterable[str] = (),
        purpose: str = "",
    ) -> str:
        """A fresh bearer token for this user; without a lifetime it works until it is revoked."""
        raw = secrets.token_urlsafe(SECRET_BYTES)
        await self._store(raw, uid, "token", scopes, lifetime_seconds, purpose=purpose)
        return raw

    async def prepare_token(
        self,
        uid: str,
        created_at: int,
        expires_at: int | None,
        *,
        scopes: Iterable[str] = (),
        purpose: str = "",
    ) -> str:
        """A token that no list has, and that ends within a day unless `keep_token` follows."""
        raw = secrets.token_urlsafe(SECRET_BYTES)
        key = self._keys.token(digest_of(raw))
        fields = _fields_of(uid, "token", scopes, created_at, expires_at, purpose=purpose)
        await self._client.calls(("HSET", key, *fields), ("PEXPIRE", key, USER_KEY_MS))
        return raw

    async def keep_token(self, raw: str, expires_at: int | None) -> None:
        """A prepared one holds for as long as it says. A revoked one stays revoked."""
        await self._client.call(*_lasting(self._keys.token(digest_of(raw)), expires_at))

    async def lookup(self, raw: str) -> Credential | None:
        """What this token or cookie stands for, perhaps no more (`has_expired`).

        None if it is unknown, revoked, or expired long ago.
        """
        if not 0 < len(raw) <= MAX_SECRET_CHARACTERS:
            return None
        return (await self.lookup_digests([digest_of(raw)]))[0]

    async def lookup_digests(self, digests: Sequence[str]) -> list[Credential | None]:
        """Like `lookup`, for those whose `Credential.digest` is known."""
        keys = map(self._keys.token, digests)
        rows = await self._client.calls(*(("HMGET", key, *_FIELDS) for key in keys))
        return [_decode(digest, row) for digest, row in zip(digests, rows, strict=True)]

    async def touch(self, digests: Iterable[str]) -> None:
        """These cookies are in use: their idle time begins again. A revoked one stays revoked."""
        await self._client.calls(
            *(("PEXPIRE", self._keys.token(digest), COOKIE_IDLE_MS) for digest in digests)
        )

    async def of_user(self, uid: str) -> list[Credential]:
        """The user's tokens and cookies that still work, newest first."""
        digests = await self._client.call("ZRANGE", self._keys.user_tokens(uid), 0, -1)
        found = await self.lookup_digests([digest.decode() for digest in digests])
        working = [one for one in found if one and one.uid == uid and not one.has_expired]
        standing = {one.digest for one in working}
        return sorted(
            (one for one in working if not one.minted_by or one.minted_by in standing),
            key=lambda credential: credential.created_at,
            reverse=True,
        )

    async def revoke(self, raw: str) -> bool:
        """Forget a token or cookie; False if it was unknown."""
        return await self.revoke_digest(digest_of(raw))

    async def revoke_digest(self, digest: str) -> bool:
        """Like `revoke`, for a caller that only has `Credential.digest`. Notifies every worker."""
        (credential,) = await self.lookup_digests([digest])
        if credential is None:
            return False
        await self._client.calls(
            ("DEL", self._keys.token(digest)),
            ("ZREM", self._keys.user_tokens(credential.uid), digest),
        )
        command = {"type": "revoked", "digest": digest}
        await self._client.call(PUBLISH, self._keys.system_channel, orjson.dumps(command))
        return True

    async def revoke_all(self, uid: str) -> int:
        """Forget every login code, token and cookie of the user; how many of the last two.

        The codes go first: see `redeem_login_code`.
        """
        codes = self._keys.user_login_codes(uid)
        pending = await self._client.call("ZRANGE", codes, 0, -1)
        await self._client.calls(
            *(("DEL", self._keys.login_code(digest.decode())) for digest in pending),
            ("DEL", codes),
        )
        digests = await self._client.call("ZRANGE", self._keys.user_tokens(uid), 0, -1)
        return sum([await self.revoke_digest(digest.decode()) for digest in digests])

    async def revoke_cookies(self, uid: str) -> int:
        """Log the user out of every browser; how many. Their tokens still work."""
        digests = [one.digest for one in await self.of_user(uid) if one.kind == "cookie"]
        return sum([await self.revoke_digest(digest) for digest in digests])

    async def _store(
        self,
        raw: str,
        uid: str,
        kind: CredentialKind,
        scopes: Iterable[str],
        lifetime_seconds: float | None,
        minted_by: str = "",
        purpose: str = "",
    ) -> None:
        """Store what the secret stands for; the user's list of digests goes first."""
        digest = digest_of(raw)
        key, index = self._keys.token(digest), self._keys.user_tokens(uid)
        now = int(time.time() * 1000)
        expires_at = expiry_of(lifetime_seconds, now)
        commands: list[Command] = [
            ("ZREMRANGEBYSCORE", index, "-inf", now - EXPIRED_TOKEN_MS),
            ("ZADD", index, "+inf" if expires_at is None else expires_at, digest),
            ("HSET", key, *_fields_of(uid, kind, scopes, now, expires_at, minted_by, purpose)),
        ]
        if kind == "cookie" and expires_at is not None:
            commands.append(("PEXPIRE", key, min(expires_at - now, COOKIE_IDLE_MS)))
        else:
            commands.append(_lasting(key, expires_at))
        await self._client.calls(*commands)

    # ---- one-time secrets ------------------------------------------------------------------------

    async def create_login_code(
        self, uid: str, minter: Credential, lifetime_seconds: float = LOGIN_CODE_SECONDS
    ) -> str:
        """A code for a URL, to be exchanged once for a cookie of this user.

        It works for as long as the credential that it is made with, if that is shorter.
        """
        code = secrets.token_urlsafe(SECRET_BYTES)
        digest, index = digest_of(code), self._keys.user_login_codes(uid)
        now, lifetime_ms = int(time.time() * 1000), int(lifetime_seconds * 1000)
        if minter.expires_at is not None:
            lifetime_ms = max(1, min(lifetime_ms, minter.expires_at - now))
        value = {
            "uid": uid,
            "minted_by": minter.digest,
            "minter": minter.uid,
            "expires_at": minter.expires_at,
        }
        await self._client.calls(
            ("ZREMRANGEBYSCORE", index, "-inf", now),
            ("ZADD", index, now + lifetime_ms, digest),
            ("PEXPIRE", index, int(max(lifetime_seconds, LOGIN_CODE_SECONDS) * 1000)),
            ("SET", self._keys.login_code(digest), orjson.dumps(value), "PX", lifetime_ms),
        )
        return code

    async def login_code(self, code: str) -> LoginCode | None:
        """What a code stands for, which is not used up; None if it does not work."""
        if not 0 < len(code) <= MAX_SECRET_CHARACTERS:
            return None
        stored = await self._client.call("GET", self._keys.login_code(digest_of(code)))
        if stored is None:
            return None
        fields = orjson.loads(stored)
        return LoginCode(
            uid=fields["uid"],
            minted_by=fields.get("minted_by"),
            minter=fields.get("minter", ""),
            expires_at=fields.get("expires_at"),
        )

    async def redeem_login_code(self, code: str, most_seconds: float) -> tuple[str, float] | None:
        """Exchange a code for a cookie: its value and its lifetime in seconds.

        None if the code works no more.

        The caller has looked whether the credential that made the code still counts. The cookie is
        stored before the code is taken, so that `revoke_all` finds the one or the other, whenever
        it comes.
        """
        found = await self.login_code(code)
        if found is None:
            return None
        # An invitation is the host's, what the guest has afterwards is not.
        minted_by = (found.minted_by or "") if found.is_own else ""
        lifetime = found.lifetime(most_seconds)
        cookie = await self.create_cookie(found.uid, lifetime, minted_by=minted_by)
        if await self._take_once(code, self._keys.login_code) is None:
            await self.revoke(cookie)
            return None
        await self._client.call("ZREM", self._keys.user_login_codes(found.uid), digest_of(code))
        return cookie, lifetime

    async def create_ticket(
        self, credential: Credential, lifetime_seconds: float = TICKET_SECONDS
    ) -> str:
        """A websocket ticket that stands for this credential, once."""
        ticket = secrets.token_urlsafe(SECRET_BYTES)
        key = self._keys.ticket(digest_of(ticket))
        value = {name: getattr(credential, name) for name in _TICKET_FIELDS}
        await self._client.call("SET", key, orjson.dumps(value), "PX", int(lifetime_seconds * 1000))
        return ticket

    async def redeem_ticket(self, ticket: str) -> Credential | None:
        """The credential of a ticket, which then works no more; None if it does not work."""
        stored = await self._take_once(ticket, self._keys.ticket)
        if stored is None:
            return None
        return Credential(**{**stored, "scopes": tuple(stored["scopes"])})

    async def _take_once(self, raw: str, key_of: Callable[[str], str]) -> dict[str, Any] | None:
        if not 0 < len(raw) <= MAX_SECRET_CHARACTERS:
            return None
        stored = await self._client.call("GETDEL", key_of(digest_of(raw)))
        return None if stored is None else cast("dict[str, Any]", orjson.loads(stored))


def expiry_of(lifetime_seconds: float | None, created_at: int) -> int | None:
    """When what was made at `created_at` ends, both in ms since 1970; None: never."""
    return None if lifetime_seconds is None else created_at + int(lifetime_seconds * 1000)


def digest_of(raw: str) -> str:
    """The name under which a secret is stored. Lone surrogates, unknown to UTF-8, are allowed."""
    return hashlib.sha256(raw.encode(errors="surrogatepass")).hexdigest()


def _fields_of(
    uid: str,
    kind: CredentialKind,
    scopes: Iterable[str],
    created_at: int,
    expires_at: int | None,
    minted_by: str = "",
    purpose: str = "",
) -> tuple[Argument, ...]:
    """What is stored of a credential: names and values."""
    # fmt: off
    return (
        "uid", uid, "scopes", " ".join(scopes), "kind", kind, "minted_by", minted_by,
        "purpose", purpose, "created_at", created_at,
        "expires_at", "" if expires_at is None else expires_at,
    )
    # fmt: on


def _lasting(key: str, expires_at: int | None) -> Command:
    """Keep a token for a while after its end, so that its bearer hears that it has expired."""
    if expires_at is None:
        return ("PERSIST", key)
    left_ms = expires_at + EXPIRED_TOKEN_MS - int(time.time() * 1000)
    return ("PEXPIRE", key, max(1, left_ms))


def _decode(digest: str, row: Sequence[bytes | None]) -> Credential | None:
    if row[0] is None:
        return None
    uid, scopes, kind, expires_at, created_at, minted_by, purpose = (
        None if value is None else value.decode() for value in row
    )
    assert uid is not None
    return Credential(
        uid=uid,
        scopes=tuple((scopes or "").split()),
        kind=kind or "",
        expires_at=int(expires_at) if expires_at else None,
        digest=digest,
        created_at=int(created_at or 0),
        minted_by=minted_by,
        purpose=purpose or "",
    )
