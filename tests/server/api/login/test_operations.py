"""The way in: opening a login link changes nothing, and its own page's form alone sets a cookie."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlencode

import httpx2
import pytest
from starlette.applications import Starlette

from server.access.auth import Authenticator, Origins
from server.access.identities import Identities
from server.api.login.operations import LoginOperations
from server.api.rest.operation import ApiContext, routes_of
from sessions.directory.credentials import Credentials, digest_of
from sessions.directory.users import User, Users
from sessions.store.store import SessionStore

HOST = "chat.example:8000"
ORIGIN = {"Origin": f"http://{HOST}"}
PAGE = {"Accept": "text/html,*/*;q=0.8"}
BY_HAND = {"Sec-Fetch-Site": "none"}
TOKEN = "t" * 43
COOKIE = "parley-8000"


@pytest.fixture
def identities(credentials: Credentials, users: Users) -> Identities:
    return Identities(credentials, users, token=TOKEN, admin_token="a" * 43)


@pytest.fixture
def app(credentials: Credentials, identities: Identities) -> Starlette:
    context: dict[str, Any] = dict.fromkeys(ApiContext._fields, MagicMock())
    context["credentials"] = credentials
    context["authenticator"] = Authenticator(identities, origins=Origins(()))
    made = ApiContext(**context)
    return Starlette(routes=routes_of(LoginOperations(made).operations(), made))


class Browser:
    """Requests to `/login` with a cookie, of which nothing is followed."""

    def __init__(self, app: Starlette, scheme: str = "http") -> None:
        self._client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url=f"{scheme}://{HOST}"
        )

    async def open(self, code: str, method: str = "GET", **headers: str) -> httpx2.Response:
        path = "/login?" + urlencode({"code": code})
        return await self._client.request(method, path, headers=_names(headers))

    async def submit(self, body: str, **headers: str) -> httpx2.Response:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return await self._client.post("/login", content=body, headers={**kind, **_names(headers)})

    async def log_in(self, code: str, **fields: str) -> httpx2.Response:
        own = {"Origin": str(self._client.base_url).rstrip("/")}
        return await self.submit(urlencode({"code": code, **fields}), **own)


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def browser(app: Starlette) -> Browser:
    return Browser(app)


@pytest.fixture
async def ada(users: Users) -> User:
    return await users.create("Ada <b>")


async def code_of(uid: str, identities: Identities, credentials: Credentials) -> str:
    """A code that the operator has made."""
    operator = (await identities.of_token(TOKEN)).credential
    assert operator is not None
    return await credentials.create_login_code(uid, operator)


@pytest.fixture
async def code(ada: User, identities: Identities, credentials: Credentials) -> str:
    return await code_of(ada.uid, identities, credentials)


@pytest.mark.row("P6")
@pytest.mark.parametrize(("scheme", "name"), [("http", COOKIE), ("https", "__Host-parley")])
async def test_a_cookie_is_only_for_this_origin_and_under_tls_only_for_tls(
    app: Starlette, code: str, scheme: str, name: str
) -> None:
    answer = await Browser(app, scheme).log_in(code)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    pair, *attributes = answer.headers["set-cookie"].split("; ")
    assert pair.partition("=")[0] == name
    expected = {"httponly", "samesite=lax", "path=/", f"max-age={7 * 86_400}"}
    assert {one.lower() for one in attributes} == expected | (
        {"secure"} if scheme == "https" else set()
    )
    assert len(pair.partition("=")[2]) == 43  # 256 bits


@pytest.mark.row("P2", "P6")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        BY_HAND,
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
        {"Sec-Purpose": "prefetch;prerender", **BY_HAND},
    ],
)
async def test_opening_a_login_link_sets_no_cookie_and_uses_no_code_up(
    browser: Browser, code: str, method: str, headers: dict[str, str]
) -> None:
    for _ in range(3):
        answer = await browser.open(code, method, **PAGE, **headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
        assert answer.headers["cache-control"] == "no-store"
    assert (await browser.log_in(code)).status_code == 303


async def test_the_page_names_the_user_and_escapes_what_users_wrote(
    browser: Browser, code: str
) -> None:
    answer = await browser.open(code)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "Log in as Ada &lt;b&gt;" in answer.text and "<b>" not in answer.text
    assert f'name="code" value="{code}"' in answer.text


@pytest.mark.parametrize(
    "origin", [None, "null", "http://127.0.0.1:8001", "http://chat.example", "https://" + HOST]
)
async def test_a_form_of_another_origin_logs_nobody_in(
    browser: Browser, code: str, origin: str | None
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    answer = await browser.submit(urlencode({"code": code}), **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "set-cookie" not in answer.headers
    assert (await browser.log_in(code)).status_code == 303  # and it is not used up


async def test_where_another_user_is_logged_in_the_page_asks_first(
    browser: Browser, credentials: Credentials, users: Users, code: str
) -> None:
    bob = await users.create("Bob")
    cookie = await credentials.create_cookie(bob.uid, 60)
    browser._client.cookies.set(COOKIE, cookie)
    asked = await browser.open(code, **BY_HAND)
    assert "instead?" in asked.text and "Bob" in asked.text and "Ada" in asked.text
    # A form that was made before Bob came does not replace him either.
    for fields in ({}, {"instead_of": "local"}):
        again = await browser.log_in(code, **fields)
        assert (again.status_code, "set-cookie" in again.headers) == (200, False)
        assert f'name="instead_of" value="{bob.uid}"' in again.text
    agreed = await browser.log_in(code, instead_of=bob.uid)
    assert agreed.status_code == 303 and COOKIE in agreed.headers["set-cookie"]


async def test_a_user_who_is_logged_in_already_is_not_asked(
    browser: Browser, credentials: Credentials, ada: User, code: str
) -> None:
    browser._client.cookies.set(COOKIE, await credentials.create_cookie(ada.uid, 60))
    assert "logged in as <strong>Ada &lt;b&gt;</strong> already" in (await browser.open(code)).text
    assert (await browser.log_in(code)).status_code == 303


async def test_only_an_operators_link_that_was_opened_by_hand_needs_no_click(
    browser: Browser, identities: Identities, credentials: Credentials, ada: User, code: str
) -> None:
    own = await code_of("local", identities, credentials)
    posts_itself = "data-posts-itself"
    assert posts_itself in (await browser.open(own, **BY_HAND)).text
    for site in ("cross-site", "same-site", "same-origin", "NONE"):
        assert posts_itself not in (await browser.open(own, Sec_Fetch_Site=site)).text
    assert posts_itself not in (await browser.open(own)).text  # plain HTTP from afar
    assert posts_itself not in (await browser.open(code, **BY_HAND)).text  # anybody's link
    browser._client.cookies.set(COOKIE, await credentials.create_cookie("local", 60))
    assert posts_itself in (await browser.open(own, **BY_HAND)).text
    browser._client.cookies.set(COOKIE, await credentials.create_cookie(ada.uid, 60))
    assert posts_itself not in (await browser.open(own, **BY_HAND)).text


async def test_what_does_not_log_in_is_a_page_for_people_and_an_error_object_for_programs(
    browser: Browser, code: str, store: SessionStore
) -> None:
    assert (await browser.log_in(code)).status_code == 303
    await store.client.call("SET", store.keys.login_code(digest_of("old")), b'{"uid": "local"}')
    for wrong, words in ((code, "used already"), ("old", "older version"), ("", "used already")):
        for answer in (await browser.open(wrong), await browser.log_in(wrong)):
            assert answer.status_code == 401
            error = answer.json()["error"]
            assert error["code"] == "token_invalid" and words in error["message"]
        page = await browser.open(wrong, **PAGE)
        assert page.status_code == 401 and page.headers["cache-control"] == "no-store"
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "does not work" in page.text and words in page.text and "parley login" in page.text


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("{}", "application/json", 415),
        ("code=x", "text/plain", 415),
        ("code=" + "x" * 5000, None, 413),
        ("code=%ff%00&code=x&=&;", None, 401),
        ("", None, 401),
    ],
)
async def test_a_form_that_is_none_is_refused(
    browser: Browser, body: str, kind: str | None, status: int
) -> None:
    headers = ORIGIN if kind is None else {**ORIGIN, "Content-Type": kind}
    assert (await browser.submit(body, **headers)).status_code == status


async def test_guessed_login_codes_are_slowed_down_and_right_ones_are_not(
    browser: Browser, code: str
) -> None:
    for number in range(5):
        assert (await browser.open(f"wrong {number}")).status_code == 401
        assert (await browser.log_in(f"wrong {number}")).status_code == 401
    for answer in (await browser.open("wrong"), await browser.log_in("w" * 43)):
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limited"
    page = await browser.open("wrong", **PAGE)
    assert page.status_code == 429 and int(page.headers["retry-after"]) <= 60
    assert (await browser.open(code)).status_code == 200
    assert (await browser.log_in(code)).status_code == 303
