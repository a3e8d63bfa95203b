"""The way in: a login code becomes a cookie, and only a browser's."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from starlette.requests import Request
from starlette.responses import Response

from server.auth import Authenticator, Origins
from server.identities import LOCAL_USER, Identities
from server.operations import Call, Doors
from server.rest_pages import Pages
from sessions.credentials import Credentials
from sessions.store import SessionStore
from sessions.users import Users


@pytest.fixture
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def credentials(store: SessionStore) -> Credentials:
    return Credentials(store.client, store.keys)


@pytest.fixture
def pages(credentials: Credentials, users: Users) -> Pages:
    identities = Identities(credentials, users, token="t" * 43, admin_token="a" * 43)
    doors: dict[str, Any] = dict.fromkeys(Doors._fields, MagicMock())
    doors["credentials"] = credentials
    doors["authenticator"] = Authenticator(identities, origins=Origins(()))
    return Pages(Doors(**doors))


async def log_in(pages: Pages, code: str, scheme: str = "http") -> Response:
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": scheme,
        "server": ("parley.example", 443),
        "path": "/login",
        "query_string": f"code={code}".encode(),
        "headers": [],
    }
    return await pages.login(Call(Request(scope), LOCAL_USER, None, MagicMock()))


@pytest.mark.parametrize(("scheme", "name"), [("http", "parley"), ("https", "__Host-parley")])
async def test_p6_a_cookie_is_only_for_this_origin_and_under_tls_only_for_tls(
    pages: Pages, credentials: Credentials, scheme: str, name: str
) -> None:
    answer = await log_in(pages, await credentials.create_login_code("local"), scheme)
    pair, *attributes = answer.headers["set-cookie"].split("; ")
    assert pair.partition("=")[0] == name
    expected = {"httponly", "samesite=lax", "path=/", f"max-age={7 * 86_400}"}
    assert {one.lower() for one in attributes} == expected | (
        {"secure"} if scheme == "https" else set()
    )
    assert len(pair.partition("=")[2]) == 43  # 256 bits


async def test_p31_a_code_of_somebody_who_is_gone_or_kept_out_opens_nothing(
    pages: Pages, credentials: Credentials, users: Users
) -> None:
    gone, out = await users.create("Ada"), await users.create("Eve")
    codes = [await credentials.create_login_code(user.uid) for user in (gone, out)]
    await users.forget(gone.uid)
    await users.update(out.uid, disabled=True)
    for user, code in zip((gone, out), codes, strict=True):
        answer = await log_in(pages, code)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert await credentials.of_user(user.uid) == []


async def test_p31_a_user_who_goes_at_that_moment_leaves_no_cookie(
    pages: Pages, credentials: Credentials, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await users.create("Ada")
    code = await credentials.create_login_code(user.uid)
    create = credentials.create_cookie

    async def create_and_forget(uid: str, lifetime_seconds: float) -> str:
        await users.forget(uid)
        return await create(uid, lifetime_seconds)

    monkeypatch.setattr(credentials, "create_cookie", create_and_forget)
    answer = await log_in(pages, code)
    assert answer.status_code == 401
    keys = [credentials._keys.user_tokens(user.uid), credentials._keys.user_record(user.uid)]
    assert await credentials._client.call("EXISTS", keys[0]) == 0
    assert await credentials._client.call("EXISTS", keys[1]) == 0
