"""Who is asking: one identity per request, explicit credentials first, cookies with our Origin."""

import base64
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from server.access.auth import Authenticator, Origins, cookie_name
from server.access.identities import ADMIN_USER, LOCAL_USER, Identities, User
from server.access.login_throttle import MAX_FAILURES
from server.protocol.errors import ApiError
from sessions.directory.credentials import Credentials, digest_of
from sessions.directory.users import Users
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore

TOKEN, ADMIN_TOKEN = "local-token-of-the-tests", "admin-token-of-the-tests"
HOST = "chat.example:8000"
ORIGIN = f"http://{HOST}"
COOKIE = "parley-8000="


def connection(
    kind: str = "websocket",
    method: str = "GET",
    query_string: str = "",
    *,
    scheme: str = "http",
    host: str = HOST,
    **headers: Any,
) -> HTTPConnection:
    """A request; header names with `_` for `-`, a list for a header that is sent twice."""
    pairs = [("host", host)]
    for name, values in headers.items():
        given = values if isinstance(values, list) else [values]
        pairs += [(name.replace("_", "-"), value) for value in given]
    offered = dict(pairs).get("sec-websocket-protocol", "")
    scope: dict[str, Any] = {
        "type": kind,
        "scheme": scheme.replace("http", "ws") if kind == "websocket" else scheme,
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
def identities(credentials: Credentials, users: Users) -> Identities:
    return Identities(credentials, users, token=TOKEN, admin_token=ADMIN_TOKEN)


@pytest.fixture
def authenticator(identities: Identities) -> Authenticator:
    return Authenticator(identities, origins=Origins(("https://other.example",)))


@pytest.fixture
async def cookie(credentials: Credentials, users: Users) -> str:
    await users.create("Alice", uid="alice")
    return COOKIE + await credentials.create_cookie("alice", 60)


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
async def test_a_wrong_header_is_refused_even_beside_other_credentials(
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


@pytest.mark.row("P9")
async def test_a_cookie_never_makes_an_admin(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    await users.create("Root", ("user", "admin"), uid="root")
    for uid in ("root", "admin"):
        raw = await credentials.create_cookie(uid, 60, scopes=["admin"])
        user = await authenticator.user(connection("http", cookie=COOKIE + raw))
        assert not user.is_admin and not user.may("admin")
        with pytest.raises(ApiError) as raised:
            await authenticator.admin(connection("http", cookie=COOKIE + raw))
        assert raised.value.code == "token_invalid"


async def test_a_stored_token_is_no_cookie_and_a_cookie_no_token(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    await users.create("Alice", uid="alice")
    token = await credentials.create_token("alice")
    cookie = await credentials.create_cookie("alice", 60)
    assert await refusal(authenticator, bearer(cookie)) == "token_invalid"
    for _ in range(2):  # the second time it is known
        request = connection("http", cookie=COOKIE + token)
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


async def test_an_expired_token_has_a_code_of_its_own(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    user = await users.create("Ada")
    token = await credentials.create_token(user.uid, -1)
    assert await refusal(authenticator, bearer(token)) == "token_expired"


@pytest.mark.row("B2")
async def test_a_ticket_stands_for_its_credential_once(
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


# ---- the name of the cookie ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "host", "name"),
    [
        ("http", "127.0.0.1:8000", "parley-8000"),
        ("http", "[::1]:8381", "parley-8381"),
        ("http", "[::1]", "parley-80"),
        ("http", "chat.example", "parley-80"),
        ("http", "chat.example:x", "parley-80"),
        ("http", "chat.example:999999999", "parley-80"),
        ("http", "", "parley-80"),
        ("https", "chat.example:8000", "__Host-parley"),
    ],
)
def test_the_cookies_name_has_the_port_or_under_tls_the_prefix(
    scheme: str, host: str, name: str
) -> None:
    for kind in ("http", "websocket"):
        assert cookie_name(connection(kind, scheme=scheme, host=host)) == name


@pytest.fixture
async def old(credentials: Credentials, users: Users, store: SessionStore) -> str:
    """The value of a cookie that an older version has stored."""
    await users.create("Alice", uid="alice")
    raw = await credentials.create_cookie("alice", 3600)
    await store.client.call("HDEL", store.keys.token(digest_of(raw)), "minted_by")
    return raw


async def test_under_tls_no_plain_cookie_counts_and_the_old_prefixed_one_does(
    authenticator: Authenticator, credentials: Credentials, old: str
) -> None:
    new = await credentials.create_cookie("alice", 60)
    for kind in ("http", "websocket"):
        origin = f"https://{HOST}"
        for raw in (new, old):
            for name in ("parley", "parley-443", "parley-8000"):
                request = connection(kind, scheme="https", cookie=f"{name}={raw}", origin=origin)
                assert await refusal(authenticator, request) == "token_invalid"
            request = connection(kind, scheme="https", cookie=f"__Host-parley={raw}", origin=origin)
            user = await authenticator.user(request)
            assert user.uid == "alice"
            assert authenticator.renamed_cookie(request, user) == []


async def test_the_cookie_of_another_port_is_not_ours(
    authenticator: Authenticator, credentials: Credentials, cookie: str
) -> None:
    other = await credentials.create_cookie("alice", 60)
    for line in (f"parley-8001={other}", f"__Host-parley={other}", f"parley={other}"):
        assert await refusal(authenticator, connection("http", cookie=line)) == "token_invalid"
        request = connection("http", cookie=f"{line}; {cookie}")
        assert (await authenticator.user(request)).uid == "alice"


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_cookie_of_an_older_version_is_exchanged_once_for_one_with_our_name(
    authenticator: Authenticator, credentials: Credentials, old: str, kind: str
) -> None:
    request = connection(kind, cookie=f"parley={old}", origin=ORIGIN)
    user = await authenticator.user(request)
    assert user.uid == "alice"
    cookies = [value.decode() for _, value in authenticator.renamed_cookie(request, user)]
    set_again, forgotten = (line.split("; ") for line in cookies)
    assert set_again[0] == f"parley-8000={old}"
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(set_again)
    (left,) = (int(part.removeprefix("Max-Age=")) for part in set_again if "Max-Age" in part)
    assert 3500 < left <= 3600  # as long as it had before
    assert forgotten[0] == 'parley=""' and "Max-Age=0" in forgotten
    renamed = connection(kind, cookie=f"parley-8000={old}", origin=ORIGIN)
    user = await authenticator.user(renamed)
    assert user.uid == "alice" and authenticator.renamed_cookie(renamed, user) == []


async def test_a_neighbours_old_cookie_is_left_to_the_neighbour(
    authenticator: Authenticator, cookie: str
) -> None:
    request = connection("http", cookie=f"{cookie}; parley=neighbour")
    user = await authenticator.user(request)
    assert authenticator.renamed_cookie(request, user) == []
    token = connection("http", cookie="parley=neighbour", authorization=f"Bearer {TOKEN}")
    assert authenticator.renamed_cookie(token, await authenticator.user(token)) == []


# ---- guessing -----------------------------------------------------------------------------------


@pytest.mark.row("B58")
async def test_an_address_that_keeps_guessing_waits_and_the_admin_does_not(
    authenticator: Authenticator, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    codes = []
    for number in range(1000):
        with pytest.raises(ApiError) as raised:
            await authenticator.admin(bearer(f"wrong {number}"))
        codes.append(raised.value.code)
    assert codes == ["token_invalid"] * 10 + ["rate_limited"] * 990
    assert raised.value.retry_after_ms is not None and raised.value.retry_after_ms <= 60_000
    logged = capsys.readouterr()
    assert (logged.out + logged.err).count("wrong credential") == 1
    assert (await authenticator.admin(bearer(ADMIN_TOKEN))).is_admin


@pytest.mark.row("B58")
async def test_an_admin_who_came_during_an_outage_does_not_wait_after_it(
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


async def test_wrong_tokens_and_tickets_are_counted_together_at_every_door(
    authenticator: Authenticator, credentials: Credentials, users: Users
) -> None:
    doors = [
        connection("http", authorization="Bearer wrong"),
        connection(authorization="Bearer wrong"),
        connection(sec_websocket_protocol=f"chat.v1, {subprotocol('wrong')}"),
        connection(query_string="ticket=wrong"),
    ]
    for number in range(MAX_FAILURES):
        assert await refusal(authenticator, doors[number % len(doors)]) == "token_invalid"
    for door in doors:
        assert await refusal(authenticator, door) == "rate_limited"
    with pytest.raises(ApiError, match="rate_limited"):
        await authenticator.admin(bearer("wrong" * 8))
    # Everybody who has a credential comes in from the same address, and for the first time.
    user = await users.create("Ada")
    token = await credentials.create_token(user.uid)
    assert (await authenticator.user(bearer(token))).uid == user.uid
    assert (await authenticator.admin(bearer(ADMIN_TOKEN))).is_admin


async def test_a_cookie_that_has_ended_is_no_guess(authenticator: Authenticator) -> None:
    for _ in range(2 * MAX_FAILURES):  # a browser sends it by itself
        request = connection("http", cookie=COOKIE + "ended")
        assert await refusal(authenticator, request) == "token_invalid"
    assert await refusal(authenticator, bearer("wrong")) == "token_invalid"
