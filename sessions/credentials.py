"""Credentials: tokens, cookies, login codes and websocket tickets.

Redis holds SHA-256 digests, never a secret itself: whoever reads the database cannot log in. What
stands in a URL (login codes, tickets) works once and for minutes or seconds.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

import orjson

from sessions.base import PUBLISH
from sessions.client import Command, RedisClient
from sessions.keys import (
    COOKIE_IDLE_MS,
    EXPIRED_TOKEN_MS,
    LOGIN_CODE_SECONDS,
    TICKET_SECONDS,
    Keys,
)

SECRET_BYTES: Final = 32  # 256 bits: a digest needs no salt, guessing no limit
MAX_SECRET_CHARACTERS: Final = 512  # more was never ours, and is not worth a hash

_FIELDS: Final = ("uid", "scopes", "kind", "expires_at", "created_at")

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

    @property
    def has_expired(self) -> bool:
        """Whether it was good until a moment that has passed."""
        return self.expires_at is not None and self.expires_at <= time.time() * 1000


class Credentials:
    """Credentials in Redis. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    # ---- tokens and cookies ----------------------------------------------------------------------

    async def create_cookie(
        self, uid: str, lifetime_seconds: float, *, scopes: Iterable[str] = ()
    ) -> str:
        """A fresh cookie value for this user; only its digest is stored.

        It ends with its lifetime, or after `COOKIE_IDLE_MS` without `touch`.
        """
        raw = secrets.token_urlsafe(SECRET_BYTES)
        await self._store(raw, uid, "cookie", scopes, lifetime_seconds)
        return raw

    async def create_token(
        self, uid: str, lifetime_seconds: float | None = None, *, scopes: Iterable[str] = ()
    ) -> str:
        """A fresh bearer token for this user; without a lifetime it works until it is revoked."""
        raw = secrets.token_urlsafe(SECRET_BYTES)
        await self._store(raw, uid, "token", scopes, lifetime_seconds)
        return raw

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
        return sorted(
            (one for one in found if one is not None and one.uid == uid and not one.has_expired),
            key=lambda credential: credential.created_at,
            reverse=True,
        )

    async def revoke(self, raw: str) -> bool:
        """Forget a token or cookie; False if it was unknown."""
        return await self.revoke_digest(digest_of(raw))

    async def revoke_digest(self, digest: str) -> bool:
        """Like `revoke`, for a caller that only has `Credential.digest`. Every worker is told."""
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
        """Forget every token and cookie of the user; how many there were."""
        digests = await self._client.call("ZRANGE", self._keys.user_tokens(uid), 0, -1)
        return sum([await self.revoke_digest(digest.decode()) for digest in digests])

    async def _store(
        self,
        raw: str,
        uid: str,
        kind: CredentialKind,
        scopes: Iterable[str],
        lifetime_seconds: float | None,
    ) -> None:
        """Store what the secret stands for; the user's list of digests goes first."""
        digest = digest_of(raw)
        key, index = self._keys.token(digest), self._keys.user_tokens(uid)
        now = int(time.time() * 1000)
        expires_at = None if lifetime_seconds is None else now + int(lifetime_seconds * 1000)
        fields = ("uid", uid, "scopes", " ".join(scopes), "kind", kind, "created_at", now)
        commands: list[Command] = [
            ("ZREMRANGEBYSCORE", index, "-inf", now - EXPIRED_TOKEN_MS),
            ("ZADD", index, "+inf" if expires_at is None else expires_at, digest),
            ("HSET", key, *fields, "expires_at", "" if expires_at is None else expires_at),
        ]
        if expires_at is None:
            commands.append(("PERSIST", key))
        else:
            left = expires_at - now
            keep = min(left, COOKIE_IDLE_MS) if kind == "cookie" else left + EXPIRED_TOKEN_MS
            commands.append(("PEXPIRE", key, keep))
        await self._client.calls(*commands)

    # ---- one-time secrets ------------------------------------------------------------------------

    async def create_login_code(
        self, uid: str, lifetime_seconds: float = LOGIN_CODE_SECONDS
    ) -> str:
        """A code for a URL, to be exchanged once for a cookie."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        await self._put_once(self._keys.login_code(digest_of(code)), {"uid": uid}, lifetime_seconds)
        return code

    async def redeem_login_code(self, code: str) -> str | None:
        """The user of a code, which then works no more; None if it does not work."""
        stored = await self._take_once(code, self._keys.login_code)
        return None if stored is None else str(stored["uid"])

    async def create_ticket(
        self, credential: Credential, lifetime_seconds: float = TICKET_SECONDS
    ) -> str:
        """A websocket ticket that stands for this credential, once."""
        ticket = secrets.token_urlsafe(SECRET_BYTES)
        key = self._keys.ticket(digest_of(ticket))
        await self._put_once(key, asdict(credential), lifetime_seconds)
        return ticket

    async def redeem_ticket(self, ticket: str) -> Credential | None:
        """The credential behind a ticket, which then works no more; None if it does not work."""
        stored = await self._take_once(ticket, self._keys.ticket)
        if stored is None:
            return None
        return Credential(**{**stored, "scopes": tuple(stored["scopes"])})

    async def _put_once(self, key: str, value: dict[str, object], lifetime_seconds: float) -> None:
        lifetime_ms = int(lifetime_seconds * 1000)
        await self._client.call("SET", key, orjson.dumps(value), "PX", lifetime_ms)

    async def _take_once(self, raw: str, key_of: Callable[[str], str]) -> dict[str, Any] | None:
        if not 0 < len(raw) <= MAX_SECRET_CHARACTERS:
            return None
        stored = await self._client.call("GETDEL", key_of(digest_of(raw)))
        return None if stored is None else cast("dict[str, Any]", orjson.loads(stored))


def digest_of(raw: str) -> str:
    """The name under which a secret is stored. Lone surrogates, which UTF-8 lacks, are allowed."""
    return hashlib.sha256(raw.encode(errors="surrogatepass")).hexdigest()


def _decode(digest: str, row: Sequence[bytes | None]) -> Credential | None:
    if row[0] is None:
        return None
    uid, scopes, kind, expires_at, created_at = ((value or b"").decode() for value in row)
    return Credential(
        uid=uid,
        scopes=tuple(scopes.split()),
        kind=kind,
        expires_at=int(expires_at) if expires_at else None,
        digest=digest,
        created_at=int(created_at or 0),
    )
