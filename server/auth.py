"""Who is asking: explicit credentials first (bearer, subprotocol, ticket), the cookie last.

A cookie travels by itself, also with requests that other sites make, so it counts only together
with our exact `Origin` on a websocket and on anything that changes state, and never for an admin.
Secrets are compared as digests in constant time and appear in no log.
"""

import base64
import binascii
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from server.attempts import FailedAttempts
from server.errors import ApiError
from server.guard import host_name
from server.identities import Identities, User

COOKIE_NAME = "parley"
SECURE_COOKIE_NAME = "__Host-parley"
COOKIE_SECONDS = 7 * 24 * 3600
BEARER_SUBPROTOCOL = "bearer."


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
        self._origins = origins
        self._attempts = FailedAttempts()

    async def user(self, connection: HTTPConnection) -> User:
        """The one identity of this request.

        Raises `ApiError`: `token_invalid`, `token_expired`, or `forbidden` for a cookie from a
        foreign origin. Raises `StoreUnavailable`.
        """
        if connection.headers.getlist("authorization"):
            return await self.identities.of_token(_authorization(connection))
        if connection.scope["type"] == "websocket":
            for offered in connection.scope.get("subprotocols", ()):
                if offered.startswith(BEARER_SUBPROTOCOL):
                    return await self.identities.of_token(_decode_subprotocol(offered))
            if tickets := connection.query_params.getlist("ticket"):
                return await self.identities.of_ticket(tickets[0] if len(tickets) == 1 else "")
        return await self._cookie_user(connection)

    async def admin(self, connection: HTTPConnection, scope: str = "admin") -> User:
        """The admin that a bearer token of this request stands for.

        Raises `ApiError`: `token_invalid`, `token_expired`, `forbidden` for anybody without the
        role and the scope, and `rate_limited` for an address that keeps guessing.
        """
        address = address_of(connection)
        if not connection.headers.getlist("authorization"):
            raise ApiError("token_invalid", "send the admin's token as a bearer token")
        token = _authorization(connection)
        with self._attempts.attempt(address, token):
            user = await self.identities.of_token(token)
        if not user.may(scope):
            raise ApiError("forbidden", f"this needs the role admin and the scope {scope}")
        return user

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
        return await self.identities.of_cookie(raw)


def address_of(connection: HTTPConnection) -> str:
    """Where it comes from, as far as uvicorn knows; "" for a socket without an address."""
    return connection.client.host if connection.client else ""


def cookie_name(secure: bool) -> str:
    return SECURE_COOKIE_NAME if secure else COOKIE_NAME


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
