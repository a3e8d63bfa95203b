"""Who may come in, through the real doors: tokens, the login link, its cookie."""

import base64
import copy
import itertools
import json
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.end_to_end.frames.raw import (
    Answer,
    RawSocket,
    ask,
    cookie_of,
    elsewhere,
    log_in,
    login_path,
    request,
    submit_login,
    upgrade,
)
from tests.end_to_end.site.harness import Client, Server

Headers = list[tuple[str, str]]


def bearer(token: str) -> Headers:
    return [("Authorization", f"Bearer {token}")]


def origin(server: Server) -> str:
    return f"http://{urlsplit(server.url).netloc}"


async def get(server: Server, path: str, headers: Headers, source: str | None = None) -> Answer:
    return await ask(server, request(server, path=path, headers=headers), source)


async def user_of(server: Server, changed: dict[str, Any]) -> dict[str, Any]:
    """Who a websocket with these headers belongs to."""
    async with RawSocket(server) as socket:
        answer = await socket.ask(upgrade(server, changed))
        assert answer.status == 101, answer
        assert answer.header("sec-websocket-protocol") == "chat.v1"
        user: dict[str, Any] = (await socket.next("connection.ready"))["user"]
        return user


def subprotocol(token: str) -> str:
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return f"chat.v1, bearer.{encoded}"


async def test_header_subprotocol_and_cookie_are_the_same_user(server: Server) -> None:
    cookie = await log_in(server)
    ways: list[dict[str, Any]] = [
        {},
        {"Authorization": None, "Sec-WebSocket-Protocol": subprotocol(server.token)},
        {"Authorization": None, "Cookie": cookie, "Origin": origin(server)},
    ]
    for changed in ways:
        assert (await user_of(server, changed))["id"] == "local"
    async with Client(server) as client:
        session = await client.new_session()
    for headers in (bearer(server.token), [("Cookie", cookie)]):
        listed = json.loads((await get(server, "/v1/sessions", headers)).body)["sessions"]
        assert listed[0]["id"] == session


async def test_the_same_key_of_two_users_makes_two_sessions(server: Server) -> None:
    other = copy.copy(server)
    other.token = (server.data_dir / "admin-token").read_text().strip()
    made = []
    for user in (server, other, server):
        async with Client(user) as client:
            await client.send("session.create", idempotency_key="the-same-key")
            made.append((await client.next("session.created"))["session"]["id"])
    assert made[0] == made[2] != made[1]


async def test_an_explicit_credential_beats_the_cookie(server: Server) -> None:
    cookie = await log_in(server)
    admin = (server.data_dir / "admin-token").read_text().strip()
    changed = {"Authorization": f"Bearer {admin}", "Cookie": cookie, "Origin": origin(server)}
    assert await user_of(server, changed) == {
        "id": "admin",
        "name": "admin",
        "roles": ["user", "admin"],
    }
    headers = [("Cookie", cookie), *bearer("wrong")]
    wrong = await get(server, "/v1/sessions", headers, elsewhere())
    assert wrong.status == 401
    header_first = {"Sec-WebSocket-Protocol": subprotocol(admin)}
    assert (await user_of(server, header_first))["id"] == "local"


@pytest.mark.row("P2", "P6")
async def test_a_login_link_works_once_and_sets_a_cookie(server: Server) -> None:
    path = await login_path(server)
    first = await submit_login(server, path)
    assert (first.status, first.header("location")) == (303, "/")
    assert first.header("cache-control") == "no-store"
    attributes = {part.strip().lower() for part in (first.header("set-cookie") or "").split(";")}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert any(part.startswith("max-age=") for part in attributes)
    assert (await get(server, "/v1/sessions", [("Cookie", cookie_of(first))])).status == 200
    for second in (await submit_login(server, path), await get(server, path, [])):
        assert second.status == 401
        assert second.header("set-cookie") is None


async def test_a_wrong_login_code_sets_no_cookie(server: Server) -> None:
    for code in ("", "x", "x" * 10_000, "%00", "..%2f", "%f0%9f", "*"):
        status = 400 if len(code) > 1024 else 401
        answer = await get(server, f"/login?code={code}", [], elsewhere())
        assert (answer.status, answer.header("set-cookie")) == (status, None)
        form = await submit_login(server, f"code={unquote(code)}", source=elsewhere())
        assert (form.status, form.header("set-cookie")) == (413 if status == 400 else 401, None)


async def test_a_cookie_cannot_multiply_itself(server: Server) -> None:
    cookie = await log_in(server)
    for origins in ([], [("Origin", origin(server))], [("Origin", "https://evil.example")]):
        headers = [("Cookie", cookie), *origins]
        answer = await ask(server, request(server, "POST", "/v1/login-codes", headers))
        assert answer.status == 403
        assert answer.error["code"] == "forbidden"


async def test_a_cookie_is_found_among_those_of_other_servers_on_this_host(server: Server) -> None:
    cookie = await log_in(server)
    others = ('a[b]=c; {"json": 1}', 'theme="dark', "_xsrf=2|1f|x; =; ;;", "é=ü", "parley2=x")
    for other in others:
        for line in (f"{other}; {cookie}", f"{cookie}; {other}"):
            assert (await get(server, "/v1/sessions", [("Cookie", line)])).status == 200, line


async def test_a_forged_cookie_is_none(server: Server) -> None:
    values = ("", "x", "x" * 8000, server.token, '""', "%00", "*", "ÿ")
    names = ("parley", f"parley-{urlsplit(server.url).port}")
    for value, name in itertools.product(values, names):
        answer = await get(server, "/v1/sessions", [("Cookie", f"{name}={value}")], elsewhere())
        assert answer.status == 401, value
        assert answer.error["code"] == "token_invalid"


async def test_malformed_authorization_is_refused(server: Server) -> None:
    token = server.token
    wrong: list[Headers] = [
        bearer(""),
        bearer("wrong"),
        bearer(token.upper()),
        bearer(token[:-1]),
        bearer(f"{token} {token}"),
        [("Authorization", token)],
        [("Authorization", f"Basic {token}")],
        bearer(token) * 2,
        bearer("ÿé"),
    ]
    for headers in wrong:
        answer = await get(server, "/v1/sessions", headers, elsewhere())
        assert answer.status == 401, headers
        assert answer.header("www-authenticate") == "Bearer"
    assert (await get(server, "/v1/sessions", [("Authorization", f"bearer {token}")])).status == 200


async def test_generated_tokens_are_private_files(server: Server) -> None:
    for name in ("token", "admin-token"):
        path = server.data_dir / name
        assert path.stat().st_mode & 0o777 == 0o600
        assert len(path.read_text().strip()) >= 43
    assert server.data_dir.stat().st_mode & 0o777 == 0o700
