"""Who is asking: explicit credentials first (bearer, subprotocol, ticket), the cookie last.

A cookie travels by itself, also with requests that other sites make, so it counts only together
with our exact `Origin` on a websocket and on anything that changes state, and never for an admin.
Secrets are compared as digests in constant time and appear in no log.
"""

import base64
import binascii
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.responses import Response

from server.access.identities import Identities, User
from server.access.login_throttle import LoginThrottle
from server.protocol.errors import ApiError
from sessions.directory.credentials import digest_of


def host_name(value: str) -> str:
    """`Host` without its port, lower case; brackets of IPv6 stay."""
    if value.startswith("["):
        return value.partition("]")[0].casefold() + "]"
    return value.partition(":")[0].casefold()


COOKIE_NAME = "parley"  # `-` and the port follow; older versions had no port
SECURE_COOKIE_NAME = "__Host-parley"
COOKIE_SECONDS = 7 * 24 * 3600
BEARER_SUBPROTOCOL = "bearer."

_PORT = re.compile(r":([0-9]{1,5})\Z")


@dataclass(frozen=True, slots=True)
class Origins:
    """Which origins are ours."""

    extra: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names of the extra origins, under which a proxy in front of us is known."""
        return tuple(host_name(origin.partition("//")[2]) for origin in self.extra)

    def allows(self, connection: HTTPConnection) -> bool:
        """Exactly one Origin header, equal to our own scheme, host and port."""
        values = connection.headers.getlist("origin")
        if len(values) != 1:
            return False
        scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme, connection.url.scheme)
        own = f"{scheme}://{connection.headers.get('host', '')}".casefold()
        return values[0].casefold() in (own, *self.extra)


class Authenticator:
    """Finds the user of a request."""

    def __init__(self, identities: Identities, *, origins: Origins) -> None:
        self.identities = identities
        self.origins = origins
        self.attempts = LoginThrottle()

    async def user(self, connection: HTTPConnection) -> User:
        """The one identity of this request.

        Raises `ApiError`: `token_invalid`, `token_expired`, `forbidden` for a cookie from a
        foreign origin, and `rate_limited` for an address that keeps guessing. Raises
        `StoreUnavailable`.
        """
        identities = self.identities
        if connection.headers.getlist("authorization"):
            return await self._try(connection, _authorization(connection), identities.of_token)
        if connection.scope["type"] == "websocket":
            for offered in connection.scope.get("subprotocols", ()):
                if offered.startswith(BEARER_SUBPROTOCOL):
                    token = _decode_subprotocol(offered)
                    return await self._try(connection, token, identities.of_token)
            if tickets := connection.query_params.getlist("ticket"):
                ticket = tickets[0] if len(tickets) == 1 else ""
                return await self._try(connection, ticket, identities.of_ticket)
        changes = connection.scope["type"] == "websocket" or connection.scope["method"] not in (
            "GET",
            "HEAD",
        )
        if _cookie(connection) is not None and changes and not self.origins.allows(connection):
            raise ApiError("forbidden", "a cookie needs our own Origin")
        return await self.cookie_user(connection)

    async def admin(self, connection: HTTPConnection, scope: str = "admin") -> User:
        """The admin that a bearer token of this request stands for.

        Raises `ApiError`: `token_invalid`, `token_expired`, `forbidden` for anybody without the
        role and the scope, and `rate_limited` for an address that keeps guessing.
        """
        if not connection.headers.getlist("authorization"):
            raise ApiError("token_invalid", "send the admin's token as a bearer token")
        token = _authorization(connection)
        user = await self._try(connection, token, self.identities.of_token)
        if not user.may(scope):
            raise ApiError("forbidden", f"this needs the role admin and the scope {scope}")
        return user

    async def cookie_user(self, connection: HTTPConnection) -> User:
        """Whose browser it is by its cookie, wherever the request comes from.

        A cookie that is not valid is no guess: a browser sends it by itself, for days. Raises
        `ApiError` and `StoreUnavailable`.
        """
        raw = _cookie(connection)
        if raw is None:
            raise ApiError("token_invalid", "no credentials: open the login URL, or send a token")
        is_old = cookie_name(connection) not in connection.cookies
        return await self.identities.of_cookie(raw, is_of_older_version=is_old)

    def renamed_cookie(self, connection: HTTPConnection, user: User) -> list[tuple[bytes, bytes]]:
        """Headers for a browser that came in with a cookie under the name of older versions.

        They give it the cookie under our name, which it sends from then on. None for all others.
        """
        raw = connection.cookies.get(COOKIE_NAME)
        credential = user.credential
        if (
            raw is None
            or _cookie(connection) != raw
            or cookie_name(connection) in connection.cookies
            or credential is None
            or credential.digest != digest_of(raw)
        ):
            return []
        answer = Response()
        set_cookie(answer, connection, raw, (credential.expires_at or 0) / 1000 - time.time())
        answer.delete_cookie(COOKIE_NAME, path="/", httponly=True, samesite="lax")
        return [header for header in answer.raw_headers if header[0] == b"set-cookie"]

    async def _try(
        self, connection: HTTPConnection, secret: str, find: Callable[[str], Awaitable[User]]
    ) -> User:
        with self.attempts.attempt(address_of(connection), secret):
            return await find(secret)


def address_of(connection: HTTPConnection) -> str:
    """Where it comes from, as far as uvicorn knows; "" for a socket without an address."""
    return connection.client.host if connection.client else ""


def cookie_name(connection: HTTPConnection) -> str:
    """The name of our cookie at the address that the browser sees.

    A browser sends the cookies of a host to all its ports, so that two servers on one host need
    names of their own. Under TLS `__Host-` keeps plain HTTP and sibling names from setting it.
    """
    if _is_secure(connection):
        return SECURE_COOKIE_NAME
    port = _PORT.search(connection.headers.get("host", ""))
    return f"{COOKIE_NAME}-{port[1] if port else 80}"


def set_cookie(
    answer: Response, connection: HTTPConnection, raw: str, lifetime_seconds: float
) -> None:
    """Let the browser keep this cookie, for us alone."""
    answer.set_cookie(
        cookie_name(connection),
        raw,
        max_age=max(0, int(lifetime_seconds)),
        path="/",
        secure=_is_secure(connection),
        httponly=True,
        samesite="lax",
    )


def clear_cookie(answer: Response, connection: HTTPConnection) -> None:
    """Let the browser forget our cookie, under the name of older versions too."""
    secure = _is_secure(connection)
    for name in (cookie_name(connection), COOKIE_NAME):
        answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="lax")


def _is_secure(connection: HTTPConnection) -> bool:
    return connection.url.scheme in ("https", "wss")


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
    """Our cookie; over plain HTTP, where there is none, the one that older versions have set."""
    cookies = connection.cookies  # a lenient parser: other servers on this host set cookies, too
    raw = cookies.get(cookie_name(connection))
    if raw is None and not _is_secure(connection):
        raw = cookies.get(COOKIE_NAME)
    return raw
