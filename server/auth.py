"""Who is asking: explicit credentials first (bearer, subprotocol), the cookie last.

A cookie travels by itself, also with requests that other sites make, so it counts only together
with our exact `Origin` on a websocket and on anything that changes state. Secrets are compared as
digests in constant time and appear in no log.
"""

import base64
import binascii
import hashlib
import hmac
import time
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from server.errors import ApiError
from server.services import User
from sessions.credentials import Credentials

COOKIE_NAME = "parley"
SECURE_COOKIE_NAME = "__Host-parley"
COOKIE_SECONDS = 7 * 24 * 3600
BEARER_SUBPROTOCOL = "bearer."
CACHE_SECONDS = 5.0  # how long a revoked cookie may still work
MAX_CACHED = 10_000
LOCAL_USER = User("local", "local")
ADMIN_USER = User("admin", "admin", ("user", "admin"))


@dataclass(frozen=True, slots=True)
class Origins:
    """Which origins are ours."""

    extra: tuple[str, ...] = ()

    def allows(self, connection: HTTPConnection) -> bool:
        """Exactly one Origin header, equal to our own scheme, host and port."""
        values = connection.headers.getlist("origin")
        if len(values) != 1:
            return False
        scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme, connection.url.scheme)
        own = f"{scheme}://{connection.headers.get('host', '')}".casefold()
        return values[0].casefold() in (own, *self.extra)


class Authenticator:
    """Finds the user of a request. Raises `ApiError` `token_invalid` when there is none."""

    def __init__(
        self, credentials: Credentials, *, token: str, admin_token: str, origins: Origins
    ) -> None:
        self._credentials = credentials
        self._users = {_digest(token): LOCAL_USER, _digest(admin_token): ADMIN_USER}
        self._origins = origins
        self._cookies: dict[str, tuple[float, User]] = {}

    async def user(self, connection: HTTPConnection) -> User:
        """The one identity of this request.

        Raises `ApiError`: `token_invalid`, or `forbidden` for a cookie from a foreign origin.
        """
        if connection.headers.getlist("authorization"):
            return self._bearer_user(_authorization(connection))
        if connection.scope["type"] == "websocket":
            for offered in connection.scope.get("subprotocols", ()):
                if offered.startswith(BEARER_SUBPROTOCOL):
                    return self._bearer_user(_decode_subprotocol(offered))
        return await self._cookie_user(connection)

    def _bearer_user(self, token: str) -> User:
        digest = _digest(token)
        for known, user in self._users.items():
            if hmac.compare_digest(known, digest):
                return user
        raise ApiError("token_invalid", "the bearer token is not valid")

    async def _cookie_user(self, connection: HTTPConnection) -> User:
        raw = _cookie(connection)
        if raw is None:
            raise ApiError("token_invalid", "no credentials: open the login URL, or send a token")
        changes = connection.scope["type"] == "websocket" or connection.scope["method"] not in (
            "GET",
            "HEAD",
        )
        if changes and not self._origins.allows(connection):
            raise ApiError("forbidden", "a cookie needs our own Origin")
        digest = _digest(raw)
        cached = self._cookies.get(digest)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        credential = await self._credentials.lookup(raw)
        if credential is None or credential.kind != "cookie":
            raise ApiError("token_invalid", "the cookie is not valid any more; log in again")
        user = User(credential.uid, credential.uid)  # never an admin, whatever its scopes say
        if len(self._cookies) >= MAX_CACHED:
            self._cookies.clear()
        self._cookies[digest] = (time.monotonic() + CACHE_SECONDS, user)
        return user


def cookie_name(secure: bool) -> str:
    return SECURE_COOKIE_NAME if secure else COOKIE_NAME


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _authorization(connection: HTTPConnection) -> str:
    values = connection.headers.getlist("authorization")
    scheme, _, token = values[0].partition(" ")
    if len(values) != 1 or scheme.lower() != "bearer" or not token:
        raise ApiError("token_invalid", "send one header: Authorization: Bearer …")
    return token.strip()


def _decode_subprotocol(offered: str) -> str:
    """`bearer.<base64url, no padding>` → the token."""
    encoded = offered.removeprefix(BEARER_SUBPROTOCOL)
    try:
        if "=" in encoded:
            raise ValueError
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise ApiError("token_invalid", "the bearer subprotocol is not base64url") from None


def _cookie(connection: HTTPConnection) -> str | None:
    cookies = connection.cookies  # a lenient parser: other servers on this host set cookies, too
    return cookies.get(SECURE_COOKIE_NAME) or cookies.get(COOKIE_NAME)
