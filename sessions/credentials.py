"""Who may come in: users, tokens, cookies, login codes and websocket tickets.

Redis holds SHA-256 digests, never a secret itself: whoever reads the database cannot log in. What
stands in a URL (login codes, tickets) works once and for minutes or seconds.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from sessions.client import RedisClient
from sessions.keys import LOGIN_CODE_SECONDS, TICKET_SECONDS, Keys

SECRET_BYTES: Final = 32  # 256 bits: a digest needs no salt, guessing no limit
MAX_SECRET_CHARACTERS: Final = 512  # more was never ours, and is not worth a hash

CredentialKind = Literal["token", "cookie"]


@dataclass(frozen=True, slots=True)
class Credential:
    """What a token, cookie or ticket stands for. `digest` names it in revocations."""

    uid: str
    scopes: tuple[str, ...]
    kind: str
    expires_at: int | None
    digest: str


@dataclass(frozen=True, slots=True)
class User:
    """A user as Redis has them."""

    uid: str
    name: str
    roles: tuple[str, ...]
    created_at: int
    disabled: bool


class Credentials:
    """Credentials and users in Redis. Any method may raise `StoreUnavailable`."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    # ---- tokens and cookies ----------------------------------------------------------------------

    async def create_cookie(
        self, uid: str, lifetime_seconds: float, *, scopes: Iterable[str] = ()
    ) -> str:
        """A fresh cookie value for this user; only its digest is stored."""
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

    async def register_token(self, raw: str, uid: str, *, scopes: Iterable[str] = ()) -> None:
        """Accept a token that the operator chose, until it is revoked."""
        await self._store(raw, uid, "token", scopes, None)

    async def lookup(self, raw: str) -> Credential | None:
        """What this token or cookie stands for; None if unknown, expired or revoked."""
        if not 0 < len(raw) <= MAX_SECRET_CHARACTERS:
            return None
        digest = digest_of(raw)
        row = await self._client.call(
            "HMGET", self._keys.token(digest), "uid", "scopes", "kind", "expires_at"
        )
        if row[0] is None:
            return None
        uid, scopes, kind, expiry = ((value or b"").decode() for value in row)
        expires_at = int(expiry) if expiry else None
        if expires_at is not None and expires_at <= time.time() * 1000:
            return None  # its key goes by itself, unless a crash kept us from saying when
        return Credential(uid, tuple(scopes.split()), kind, expires_at, digest)

    async def revoke(self, raw: str) -> bool:
        """Forget a token or cookie; False if it was unknown. Workers may have it cached."""
        return await self.revoke_digest(digest_of(raw))

    async def revoke_digest(self, digest: str) -> bool:
        """Like `revoke`, for a caller that only has `Credential.digest`."""
        return bool(await self._client.call("DEL", self._keys.token(digest)))

    async def _store(
        self,
        raw: str,
        uid: str,
        kind: CredentialKind,
        scopes: Iterable[str],
        lifetime_seconds: float | None,
    ) -> None:
        key = self._keys.token(digest_of(raw))
        fields = ("uid", uid, "scopes", " ".join(scopes), "kind", kind)
        if lifetime_seconds is None:
            await self._client.calls(("HSET", key, *fields), ("PERSIST", key))
            return
        lifetime_ms = int(lifetime_seconds * 1000)
        expires_at = int(time.time() * 1000) + lifetime_ms
        await self._client.calls(
            ("HSET", key, *fields, "expires_at", expires_at), ("PEXPIRE", key, lifetime_ms)
        )

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
        await self._put_once(
            key,
            {
                "uid": credential.uid,
                "scopes": credential.scopes,
                "kind": credential.kind,
                "expires_at": credential.expires_at,
                "digest": credential.digest,
            },
            lifetime_seconds,
        )
        return ticket

    async def redeem_ticket(self, ticket: str) -> Credential | None:
        """The credential behind a ticket, which then works no more; None if it does not work."""
        stored = await self._take_once(ticket, self._keys.ticket)
        if stored is None:
            return None
        return Credential(
            uid=stored["uid"],
            scopes=tuple(stored["scopes"]),
            kind=stored["kind"],
            expires_at=stored["expires_at"],
            digest=stored["digest"],
        )

    async def _put_once(self, key: str, value: dict[str, object], lifetime_seconds: float) -> None:
        lifetime_ms = int(lifetime_seconds * 1000)
        await self._client.call("SET", key, orjson.dumps(value), "PX", lifetime_ms)

    async def _take_once(self, raw: str, key_of: Callable[[str], str]) -> dict[str, Any] | None:
        if not 0 < len(raw) <= MAX_SECRET_CHARACTERS:
            return None
        stored = await self._client.call("GETDEL", key_of(digest_of(raw)))
        return None if stored is None else cast("dict[str, Any]", orjson.loads(stored))

    # ---- users -----------------------------------------------------------------------------------

    async def ensure_user(self, uid: str, *, name: str, roles: Iterable[str] = ()) -> User:
        """The user's record, made now if there was none; an existing one is not changed."""
        key = self._keys.user_record(uid)
        now_ms = int(time.time() * 1000)
        await self._client.calls(
            ("HSETNX", key, "name", name),
            ("HSETNX", key, "roles", " ".join(roles)),
            ("HSETNX", key, "created_at", now_ms),
        )
        user = await self.user(uid)
        assert user is not None
        return user

    async def user(self, uid: str) -> User | None:
        """The user's record, None if there is none."""
        key = self._keys.user_record(uid)
        row = await self._client.call("HMGET", key, "name", "roles", "created_at", "disabled")
        if row[2] is None:
            return None
        name, roles, created_at, disabled = ((value or b"").decode() for value in row)
        return User(
            uid=uid,
            name=name,
            roles=tuple(roles.split()),
            created_at=int(created_at),
            disabled=disabled == "1",
        )


def digest_of(raw: str) -> str:
    """The name under which a secret is stored. Lone surrogates, which UTF-8 lacks, are allowed."""
    return hashlib.sha256(raw.encode(errors="surrogatepass")).hexdigest()
