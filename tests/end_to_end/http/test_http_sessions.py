"""Sessions over HTTP: made, found, listed, changed and deleted; their viewers hear of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.end_to_end.clients.http_client import (
    Http,
    admin_token,
    ask_and_follow,
    code_of,
    fresh_key,
)
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.frames.raw import log_in
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_word

SHORT = {"temperature": 0, "max_output_tokens": 3}


@pytest.fixture
async def http(server: Server) -> AsyncIterator[Http]:
    async with Http(server) as http:
        yield http


async def test_a_session_is_made_once_for_a_key(http: Http) -> None:
    key, body = fresh_key(), {"title": "Tulips", "settings": {"temperature": 0.5}}
    first = await http.post("/v1/sessions", body, headers=key)
    again = await http.post("/v1/sessions", {"title": "other"}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json()["title"] == "Tulips" and first.json()["settings"] == {"temperature": 0.5}
    assert first.headers["location"] == f"/v1/sessions/{first.json()['id']}"
    assert first.headers["etag"] == '"1"'
    assert code_of(await http.post("/v1/sessions")) == (400, "idempotency_key_required")


async def test_an_empty_body_makes_an_untitled_session(http: Http) -> None:
    answer = await http.ask("POST", "/v1/sessions", headers=fresh_key())
    assert answer.status_code == 201 and answer.json()["title"] == ""


async def test_a_change_needs_the_revision_that_it_names(http: Http) -> None:
    path = f"/v1/sessions/{(await http.new_session())['id']}"
    changed = await http.ask("PATCH", path, json={"title": "A"}, headers={"If-Match": '"1"'})
    assert changed.status_code == 200
    assert (changed.json()["title"], changed.headers["etag"]) == ("A", '"2"')
    for tag in ('"1"', '"9999"', '"x"', "2", 'W/"2"'):
        refused = await http.ask("PATCH", path, json={"title": "B"}, headers={"If-Match": tag})
        assert code_of(refused) == (412, "revision_conflict"), tag
        refused = await http.ask("DELETE", path, headers={"If-Match": tag})
        assert code_of(refused) == (412, "revision_conflict"), tag
    for tag in ('"2"', "*"):
        done = await http.ask("PATCH", path, json={"pinned": True}, headers={"If-Match": tag})
        assert done.status_code == 200
    assert (await http.get(path)).json()["title"] == "A"


async def test_an_unchanged_session_is_not_sent_again(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    path = f"/v1/sessions/{session}"
    tag = (await http.get(path)).headers["etag"]
    same = await http.get(path, headers={"If-None-Match": f'"0", {tag}'})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    async with ask_and_follow(server, session, oracle_word(1), settings=SHORT) as stream:
        await stream.next("response.done")
    # The revision may be the same, the object is not: it has messages now.
    fresh = await http.get(path, headers={"If-None-Match": (await http.get(path)).headers["etag"]})
    assert fresh.status_code == 200 and fresh.json()["message_count"] == 2


async def test_changes_reach_viewers_and_sidebars(server: Server, http: Http) -> None:
    async with Client(server) as viewer, Client(server) as sidebar:
        await sidebar.next("connection.ready")
        session = (await http.new_session(title="One"))["id"]
        created = await sidebar.next("session.created")
        assert created["session"]["id"] == session
        await viewer.reply("session.subscribe", session_id=session)
        await http.ask("PATCH", f"/v1/sessions/{session}", json={"title": "Two"})
        for client in (viewer, sidebar):
            updated = await client.next("session.updated")
            assert (updated["session"]["title"], updated["by"]) == ("Two", "user")
        assert (await http.ask("DELETE", f"/v1/sessions/{session}")).status_code == 204
        for client in (viewer, sidebar):
            assert (await client.next("session.deleted"))["session_id"] == session
    assert code_of(await http.get(f"/v1/sessions/{session}")) == (404, "session_not_found")


async def test_titles_are_found_and_pins_and_times_filter(http: Http) -> None:
    word = fresh_key()["Idempotency-Key"]
    made = [await http.new_session(title=f"{word} Ölbaum {n}") for n in range(5)]
    await http.ask("PATCH", f"/v1/sessions/{made[1]['id']}", json={"pinned": True})

    async def listed(**query: Any) -> list[str]:
        page = (await http.get("/v1/sessions", params=query)).json()
        return [session["id"] for session in page["sessions"]]

    newest_first = [made[i]["id"] for i in (1, 4, 3, 2, 0)]
    assert await listed(q=f"{word.upper()} öL") == newest_first
    assert await listed(q=word, pinned=True) == [made[1]["id"]]
    assert await listed(q=word, pinned=False) == newest_first[1:]
    after = (await http.get(f"/v1/sessions/{made[3]['id']}")).json()["updated_at"]
    assert await listed(q=word, updated_after=after) == newest_first[:2]
    assert await listed(q=word + "x") == []


async def test_a_search_goes_on_after_its_cursor(http: Http) -> None:
    word = fresh_key()["Idempotency-Key"]
    made = [(await http.new_session(title=word))["id"] for _ in range(5)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await http.get("/v1/sessions", params={"q": word, "limit": 2, **cursor})).json()
        found += [session["id"] for session in page["sessions"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == made[::-1]


@pytest.mark.row("B45")
async def test_a_cursor_belongs_to_its_user(server: Server, http: Http) -> None:
    await asyncio.gather(http.new_session(), http.new_session())
    cursor = (await http.get("/v1/sessions", params={"limit": 1})).json()["next_cursor"]
    assert cursor is not None
    async with Http(server, admin_token(server)) as other:
        refused = await other.get("/v1/sessions", params={"cursor": cursor})
    assert code_of(refused) == (400, "invalid_field")
    assert refused.json()["error"]["param"] == "cursor"


async def test_one_message_is_read_whole(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    async with ask_and_follow(server, session, oracle_word(2) * 1, settings=SHORT) as stream:
        message_id = (await stream.next("response.created"))["response"]["message_id"]
        await stream.next("response.done")
    path = f"/v1/sessions/{session}/messages"
    page = (await http.get(path)).json()["messages"]
    assert (await http.get(f"{path}/{message_id}")).json() == page[-1]
    for unknown in ("msg_" + "A" * 22, "x", "%00"):
        assert code_of(await http.get(f"{path}/{unknown}")) == (404, "message_not_found")


async def test_presets_are_checked_like_settings_and_are_their_users_own(server: Server) -> None:
    server = await for_new_user(server)
    async with Http(server) as http:
        for body, param in (
            ({"name": " ", "settings": {}}, "name"),
            ({"name": "x" * 61, "settings": {}}, "name"),
            ({"name": "a\nb", "settings": {}}, "name"),
            ({"name": "hot", "settings": {"temperature": 9}}, "settings.temperature"),
            ({"name": "hot", "settings": {"heat": 1}}, "settings"),
            ({"name": "hot"}, "settings"),
        ):
            answer = await http.ask("PUT", "/v1/presets", json=body)
            assert code_of(answer) == (400, "invalid_field"), body
            assert answer.json()["error"]["param"].startswith(param)
        name = "hot/cold & “more”"
        hot = {"name": name, "settings": {"temperature": 1.5}, "default": True}
        put = await http.ask("PUT", "/v1/presets", json=hot)
        assert put.json() == (await http.get("/v1/presets")).json()
        assert put.json() == {
            "presets": [{"name": name, "settings": {"temperature": 1.5}}],
            "default": name,
        }
        async with Http(server, admin_token(server)) as other:
            assert (await other.get("/v1/presets")).json()["presets"] == []
        for status in (204, 404):
            answer = await http.ask("DELETE", "/v1/presets", params={"name": name})
            assert answer.status_code == status
        assert (await http.get("/v1/presets")).json() == {"presets": [], "default": None}


async def test_logging_out_ends_one_cookie_or_all_of_them_and_no_token(
    server: Server, http: Http
) -> None:
    assert code_of(await http.post("/v1/logout")) == (403, "forbidden")  # a token is no login
    server = await for_new_user(server)
    first, second, third = [await log_in(server) for _ in range(3)]

    async def ask(cookie: str, method: str, path: str, origin: str = server.url) -> int:
        headers = {"Cookie": cookie, "Origin": origin}
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as browser:
            answer = await browser.request(method, path, headers=headers)
        if answer.status_code == 204:
            assert "Max-Age=0" in answer.headers["set-cookie"]
        return answer.status_code

    assert await ask(first, "POST", "/v1/logout", "http://evil.example") == 403
    assert await ask(first, "POST", "/v1/logout") == 204
    assert await ask(first, "GET", "/v1/sessions") == 401
    assert await ask(second, "GET", "/v1/sessions") == 200
    assert await ask(second, "POST", "/v1/logout?everywhere=true") == 204
    assert await ask(third, "GET", "/v1/sessions") == 401
    async with Http(server) as program:
        assert (await program.get("/v1/sessions")).status_code == 200


async def test_a_ticket_opens_one_websocket(server: Server, http: Http) -> None:
    answer = await http.post("/v1/ws-ticket")
    assert answer.status_code == 201 and answer.json()["expires_in_s"] == 30
    ticket = answer.json()["ticket"]
    assert await _handshake(server, ticket) == "local"
    assert await _handshake(server, ticket) == 4401  # it was used
    assert await _handshake(server, "x") == 4401


async def _handshake(server: Server, ticket: str) -> str | int:
    """The user of a socket that was opened with this ticket, or how it was closed."""
    from tests.end_to_end.frames.raw import RawSocket, elsewhere, upgrade

    async with RawSocket(server, elsewhere()) as socket:
        changed = {"Authorization": None}
        answer = await socket.ask(upgrade(server, changed, path=f"/v1/ws?ticket={ticket}"))
        assert answer.status == 101
        try:
            return str((await socket.next("connection.ready"))["user"]["id"])
        except AssertionError as closed:
            return int.from_bytes(closed.args[0][:2], "big")
