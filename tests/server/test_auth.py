"""Who is asking: one identity per request, explicit credentials first, cookies with our Origin."""

import base64
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from server.auth import ADMIN_USER, LOCAL_USER, Authenticator, Origins
from server.errors import ApiError
from server.services import User
from sessions.credentials import Credentials
from sessions.store import SessionStore

TOKEN, ADMIN_TOKEN = "local-token-of-the-test", "admin-token-of-the-test"
HOST = "chat.example:8000"
ORIGIN = f"http://{HOST}"


def connection(kind: str = "websocket", method: str = "GET", **headers: Any) -> HTTPConnection:
    """A request; header names with `_` for `-`, a list for a header that is sent twice."""
    pairs = [("host", HOST)]
    for name, values in headers.items():
        given = values if isinstance(values, list) else [values]
        pairs += [(name.replace("_", "-"), value) for value in given]
    offered = dict(pairs).get("sec-websocket-protocol", "")
    scope: dict[str, Any] = {
        "type": kind,
        "scheme": "ws" if kind == "websocket" else "http",
        "path": "/v1/ws",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
        "subprotocols": [part.strip() for part in offered.split(",")],
    }
    if kind == "http":
        scope["method"] = method
    return HTTPConnection(scope)


def subprotocol(token: str) -> str:
    return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


@pytest.fixture
def credentials(store: SessionStore) -> Credentials:
    return Credentials(store.client, store.keys)


@pytest.fixture
def authenticator(credentials: Credentials) -> Authenticator:
    origins = Origins(("https://other.example",))
    return Authenticator(credentials, token=TOKEN, admin_token=ADMIN_TOKEN, origins=origins)


@pytest.fixture
async def cookie(credentials: Credentials) -> str:
    return "parley=" + await credentials.create_cookie("alice", 60)


async def refusal(authenticator: Authenticator, request: HTTPConnection) -> str:
    with pytest.raises(ApiError) as raised:
        await authenticator.user(request)
    return raised.value.code


async def test_either_token_is_known_as_header_and_as_subprotocol(
    authenticator: Authenticator,
) -> None:
    for token, user in ((TOKEN, LOCAL_USER), (ADMIN_TOKEN, ADMIN_USER)):
        header = connection(authorization=f"Bearer {token}")
        offer = connection(sec_websocket_protocol=f"chat.v1, {subprotocol(token)}")
        assert await authenticator.user(header) == await authenticator.user(offer) == user


async def test_a_subprotocol_counts_on_a_websocket_alone(authenticator: Authenticator) -> None:
    request = connection("http", sec_websocket_protocol=subprotocol(TOKEN))
    assert await refusal(authenticator, request) == "token_invalid"


@pytest.mark.parametrize(
    "value",
    [
        *("", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer \xff"),
        *(f"Bearer {TOKEN} x", f"Bearer {TOKEN[:-1]}", [f"Bearer {TOKEN}"] * 2),
    ],
)
async def test_a_wrong_header_is_refused_whatever_else_there_is(
    authenticator: Authenticator, cookie: str, value: Any
) -> None:
    request = connection(
        authorization=value,
        sec_websocket_protocol=subprotocol(TOKEN),
        cookie=cookie,
        origin=ORIGIN,
    )
    assert await refusal(authenticator, request) == "token_invalid"


@pytest.mark.parametrize("offer", ["", "=", "YQ==", "!!!", "é", "_w", "a", "x" * 5000])
async def test_a_subprotocol_that_is_no_token_is_refused(
    authenticator: Authenticator, offer: str
) -> None:
    request = connection(sec_websocket_protocol=f"bearer.{offer}, chat.v1")
    assert await refusal(authenticator, request) == "token_invalid"


async def test_the_header_comes_before_the_subprotocol_and_that_before_the_cookie(
    authenticator: Authenticator, cookie: str
) -> None:
    offer = subprotocol(ADMIN_TOKEN)
    request = connection(sec_websocket_protocol=offer, cookie=cookie, origin=ORIGIN)
    assert await authenticator.user(request) == ADMIN_USER
    request = connection(authorization=f"Bearer {TOKEN}", sec_websocket_protocol=offer)
    assert await authenticator.user(request) == LOCAL_USER


@pytest.mark.parametrize("origin", [ORIGIN, ORIGIN.upper(), "https://other.example"])
async def test_a_cookie_with_our_origin_is_its_user(
    authenticator: Authenticator, cookie: str, origin: str
) -> None:
    user = await authenticator.user(connection(cookie=cookie, origin=origin))
    assert user == User("alice", "alice")


@pytest.mark.parametrize(
    "origin",
    [
        *([], "null", "", "http://evil.example", "http://chat.example", ORIGIN + "/"),
        *(f"https://{HOST}", "http://chat.example:8001", f"{ORIGIN}.evil.example"),
        *("https://other.example:443", "other.example", [ORIGIN, ORIGIN], f"{ORIGIN}, {ORIGIN}"),
    ],
)
async def test_a_cookie_from_another_origin_is_forbidden(
    authenticator: Authenticator, cookie: str, origin: Any
) -> None:
    for request in (
        connection(cookie=cookie, origin=origin),
        connection("http", "POST", cookie=cookie, origin=origin),
        connection("http", "DELETE", cookie=cookie, origin=origin),
    ):
        assert await refusal(authenticator, request) == "forbidden"


async def test_reading_over_http_needs_no_origin(authenticator: Authenticator, cookie: str) -> None:
    for method in ("GET", "HEAD"):
        user = await authenticator.user(connection("http", method, cookie=cookie))
        assert user.uid == "alice"


async def test_a_cookie_never_makes_an_admin(
    authenticator: Authenticator, credentials: Credentials
) -> None:
    raw = await credentials.create_cookie("admin", 60, scopes=["admin"])
    user = await authenticator.user(connection("http", cookie=f"parley={raw}"))
    assert not user.is_admin


async def test_a_stored_token_is_no_cookie(
    authenticator: Authenticator, credentials: Credentials
) -> None:
    raw = await credentials.create_token("alice")
    request = connection("http", cookie=f"parley={raw}")
    assert await refusal(authenticator, request) == "token_invalid"


async def test_a_revoked_cookie_works_no_longer_than_the_cache_holds(
    authenticator: Authenticator, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.auth.CACHE_SECONDS", 0.0)
    raw = await credentials.create_cookie("alice", 60)
    request = connection("http", cookie=f"parley={raw}")
    assert (await authenticator.user(request)).uid == "alice"
    await credentials.revoke(raw)
    assert await refusal(authenticator, request) == "token_invalid"


async def test_the_cookie_of_a_secure_page_comes_first(
    authenticator: Authenticator, credentials: Credentials
) -> None:
    secure = await credentials.create_cookie("alice", 60)
    plain = await credentials.create_cookie("mallory", 60)
    request = connection("http", cookie=f"parley={plain}; __Host-parley={secure}")
    assert (await authenticator.user(request)).uid == "alice"
