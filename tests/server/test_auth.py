"""Who is asking: one identity per request, explicit credentials first, cookies with our Origin."""

import base64
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from server.attempts import MAX_FAILURES
from server.auth import Authenticator, Origins
from server.errors import ApiError
from server.identities import ADMIN_USER, LOCAL_USER, Identities, User
from sessions.credentials import Credentials
from sessions.errors import StoreUnavailable
from sessions.store import SessionStore
from sessions.users import Users

TOKEN, ADMIN_TOKEN = "local-token-of-the-test", "admin-token-of-the-test"
HOST = "chat.example:8000"
ORIGIN = f"http://{HOST}"


def connection(
    kind: str = "websocket", method: str = "GET", query_string: str = "", **headers: Any
) -> HTTPConnection:
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
        "query_string": query_string.encode(),
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
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def identities(credentials: Credentials, users: Users) -> Identities:
    return Identities(credentials, users, token=TOKEN, admin_token=ADMIN_TOKEN)


@pytest.fixture
def authenticator(identities: Identities) -> Authenticator:
    return Authenticator(identities, origins=Origins(("https://other.example",)))


@pytest.fixture
async def cookie(credentials: Credentials, users: Users) -> str:
    await users.create("Alice", uid="alice")
    return "parley=" + await credentials.create_cookie("alice", 60)


def bearer(token: str) -> HTTPConnection:
    return connection("http", authorization=f"Bearer {token}")


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
    assert user == User("alice", "Alice")


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


async def test_p9_a_cookie_never_makes_an_admin(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    await users.create("Root", ("user", "admin"), uid="root")
    for uid in ("root", "admin"):
        raw = await credentials.create_cookie(uid, 60, scopes=["admin"])
        user = await authenticator.user(connection("http", cookie=f"parley={raw}"))
        assert not user.is_admin and not user.may("admin")
        with pytest.raises(ApiError) as raised:
            await authenticator.admin(connection("http", cookie=f"parley={raw}"))
        assert raised.value.code == "token_invalid"


async def test_a_stored_token_is_no_cookie_and_a_cookie_no_token(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    await users.create("Alice", uid="alice")
    token = await credentials.create_token("alice")
    cookie = await credentials.create_cookie("alice", 60)
    assert await refusal(authenticator, bearer(cookie)) == "token_invalid"
    for _ in range(2):  # the second time it is known
        request = connection("http", cookie=f"parley={token}")
        assert await refusal(authenticator, request) == "token_invalid"
        assert (await authenticator.user(bearer(token))).uid == "alice"


async def test_a_users_token_comes_with_roles_and_scopes(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    user = await users.create("Ada", ("user", "admin"))
    token = await credentials.create_token(user.uid, scopes=("admin",))
    found = await authenticator.admin(bearer(token))
    assert found == User(user.uid, "Ada", ("user", "admin"), ("admin",))
    with pytest.raises(ApiError, match="forbidden"):
        await authenticator.admin(bearer(token), "admin:transcripts")


async def test_a_scope_without_the_role_is_worth_nothing(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    user = await users.create("Ada")
    token = await credentials.create_token(user.uid, scopes=("admin", "admin:transcripts"))
    with pytest.raises(ApiError, match="forbidden"):
        await authenticator.admin(bearer(token))


async def test_a_user_who_is_disabled_or_deleted_or_never_was_cannot_come_in(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    disabled, deleted = await users.create("A"), await users.create("B")
    tokens = [await credentials.create_token(uid) for uid in (disabled.uid, deleted.uid, "nobody")]
    await users.update(disabled.uid, disabled=True)
    await users.forget(deleted.uid)
    refusals = [await refusal(authenticator, bearer(token)) for token in tokens]
    assert refusals == ["forbidden", "token_invalid", "token_invalid"]


async def test_an_expired_token_is_told_apart(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    user = await users.create("Ada")
    token = await credentials.create_token(user.uid, -1)
    assert await refusal(authenticator, bearer(token)) == "token_expired"


async def test_b2_a_ticket_stands_for_its_credential_once(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    user = await users.create("Ada")
    theirs = (await authenticator.user(bearer(await credentials.create_token(user.uid)))).credential
    ours = (await authenticator.user(bearer(TOKEN))).credential
    assert theirs is not None and ours is not None
    for credential, uid in ((theirs, user.uid), (ours, "local")):
        ticket = await credentials.create_ticket(credential)
        request = connection(query_string=f"ticket={ticket}")
        assert (await authenticator.user(request)).uid == uid
        assert await refusal(authenticator, request) == "token_invalid"
    again = await credentials.create_ticket(ours)
    request = connection(query_string=f"ticket={again}&ticket={again}")
    assert await refusal(authenticator, request) == "token_invalid"


async def test_the_cookie_of_a_secure_page_comes_first(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    for uid in ("alice", "mallory"):
        await users.create(uid, uid=uid)
    secure = await credentials.create_cookie("alice", 60)
    plain = await credentials.create_cookie("mallory", 60)
    request = connection("http", cookie=f"parley={plain}; __Host-parley={secure}")
    assert (await authenticator.user(request)).uid == "alice"


async def test_b58_an_address_that_keeps_guessing_waits_and_the_admin_does_not(
    authenticator: Authenticator, capsys: pytest.CaptureFixture[str]
) -> None:
    await authenticator.admin(bearer(ADMIN_TOKEN))
    capsys.readouterr()
    codes = []
    for number in range(1000):
        with pytest.raises(ApiError) as raised:
            await authenticator.admin(bearer(f"wrong {number}"))
        codes.append(raised.value.code)
    assert codes == ["token_invalid"] * 10 + ["rate_limited"] * 990
    assert raised.value.retry_after_ms is not None and raised.value.retry_after_ms <= 60_000
    logged = capsys.readouterr()
    assert (logged.out + logged.err).count("wrong admin token") == 1
    assert (await authenticator.admin(bearer(ADMIN_TOKEN))).is_admin


async def test_an_admin_who_came_during_an_outage_does_not_wait_behind_it(
    authenticator: Authenticator, identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = connection("http", authorization=f"Bearer {ADMIN_TOKEN}")

    async def fail(raw: str) -> User:
        raise StoreUnavailable

    with monkeypatch.context() as outage:
        outage.setattr(identities, "of_token", fail)
        for _ in range(2 * MAX_FAILURES):
            with pytest.raises(StoreUnavailable):
                await authenticator.admin(asking)
    assert (await authenticator.admin(asking)).uid == ADMIN_USER.uid
