"""Forks, exports, imports and share links over HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.end_to_end.clients.http_client import (
    Http,
    admin_token,
    ask_and_follow,
    code_of,
    fresh_key,
)
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.frames.raw import Answer, RawSocket, request
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

EMPTY = {"format": "parley.session", "version": 1, "messages": []}
SLOW_ADDRESS = "127.0.0.3"  # the other tests' rate is not used up
SHORT = {"temperature": 0, "max_output_tokens": 3}


@pytest.fixture
async def http(server: Server) -> AsyncIterator[Http]:
    async with Http(server) as http:
        yield http


async def talk(server: Server, session: str, *numbers: int) -> list[str]:
    """Questions with their whole answers; returns the ids of the answers."""
    ids = []
    for number in numbers:
        async with ask_and_follow(server, session, oracle_word(number), settings=SHORT) as stream:
            ids.append((await stream.next("response.created"))["response"]["message_id"])
            await stream.next("response.done")
    return ids


async def texts(http: Http, session: str) -> list[str]:
    page = (await http.get(f"/v1/sessions/{session}/messages")).json()
    return [message["content"][0]["text"] for message in page["messages"]]


async def test_a_fork_goes_on_by_itself(server: Server, http: Http) -> None:
    session = (await http.new_session(title="Root"))["id"]
    first, _ = await talk(server, session, 1, 2)
    async with Client(server) as sidebar:
        await sidebar.next("connection.ready")
        path, key = f"/v1/sessions/{session}/fork", fresh_key()
        forked = await http.post(path, {"message_id": first}, headers=key)
        assert forked.status_code == 201
        assert (await sidebar.next("session.created"))["session"]["id"] == forked.json()["id"]
    again = await http.post(path, {"message_id": first}, headers=key)
    assert (again.status_code, again.json()) == (200, forked.json())
    fork = forked.json()["id"]
    assert forked.json()["title"] == "Root"
    await talk(server, fork, 3)
    assert await texts(http, fork) == [
        *(oracle_word(1), oracle_answer(1, 3), oracle_word(3), oracle_answer(3, 3))
    ]
    assert len(await texts(http, session)) == 4


async def test_a_fork_of_what_is_not_there_is_refused(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    path = f"/v1/sessions/{session}/fork"
    for message_id in ("msg_" + "A" * 22, "x", ""):
        answer = await http.post(path, {"message_id": message_id})
        assert code_of(answer) == (404, "message_not_found")
    assert code_of(await http.post(path, {})) == (400, "invalid_field")
    body = {"message_id": "msg_" + "A" * 22}
    bad_key = await http.post(path, body, headers={"Idempotency-Key": "a b"})
    assert code_of(bad_key) == (400, "invalid_field")


async def test_an_export_can_be_imported_with_all_its_branches(server: Server, http: Http) -> None:
    session = (await http.new_session(title="Röschen", settings={"temperature": 0.5}))["id"]
    first, _ = await talk(server, session, 1, 2)
    await http.ask("PATCH", f"/v1/sessions/{session}", json={"head": first})
    await talk(server, session, 4)
    exported = await http.get(f"/v1/sessions/{session}/export")
    assert exported.headers["content-type"] == "application/json"
    file = exported.json()
    assert (file["format"], file["version"], len(file["messages"])) == ("parley.session", 1, 6)
    made = await http.post("/v1/sessions/import", file)
    assert made.status_code == 201
    copy = made.json()["id"]
    assert made.json()["title"] == "Röschen" and made.json()["settings"] == {"temperature": 0.5}
    assert await texts(http, copy) == await texts(http, session)
    again = (await http.get(f"/v1/sessions/{copy}/export")).json()
    assert _shape(again) == _shape(file)
    await talk(server, copy, 5)


def _shape(file: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Messages with places for ids."""
    places: dict[str | None, int] = {m["id"]: n for n, m in enumerate(file["messages"])}
    places[None] = -1
    return [
        (places[m["parent_id"]], m["role"], m["content"], m["status"], m.get("usage"))
        for m in file["messages"]
    ]


async def test_markdown_shows_the_current_branch(server: Server, http: Http) -> None:
    session = (await http.new_session(title="Notes"))["id"]
    await talk(server, session, 1)
    answer = await http.get(f"/v1/sessions/{session}/export?format=md")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    title, *rest = answer.text.split("\n## ")
    assert title.startswith("# Notes\n")
    assert rest == [
        f"User\n\n{oracle_word(1)}\n",
        f"Assistant (interrupted)\n\n{oracle_answer(1, 3)}\n",
    ]
    refused = await http.get(f"/v1/sessions/{session}/export?format=pdf")
    assert code_of(refused) == (400, "invalid_field")


@pytest.mark.row("B43")
@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("a\r\nSet-Cookie: x=1", "a Set-Cookie x=1"),
        ('x"; filename="y.exe', "x ; filename= y.exe"),
        ("../../etc/passwd", "etc passwd"),
        ("Grüße 🙂", "Grüße 🙂"),
        ("\u202egpj.exe", "gpj.exe"),
        ("", "chat"),
        ("...", "chat"),
    ],
)
async def test_a_title_is_cleaned_for_the_file_name(http: Http, title: str, name: str) -> None:
    from urllib.parse import unquote

    session = (await http.new_session(title=title))["id"]
    answer = await http.get(f"/v1/sessions/{session}/export?format=md")
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    disposition = answer.headers["content-disposition"]
    fallback, _, encoded = disposition.partition("; filename*=UTF-8''")
    assert unquote(encoded) == f"{name}.md"
    assert fallback.startswith('attachment; filename="') and fallback.count('"') == 2
    assert fallback.isascii() and "\\" not in fallback


async def test_a_shared_snapshot_is_read_without_a_credential(server: Server, http: Http) -> None:
    session = (await http.new_session(title="<img onerror=1>"))["id"]
    await talk(server, session, 1)
    made = await http.post(f"/v1/sessions/{session}/share")
    assert made.status_code == 201
    path = made.json()["path"]
    async with Http(server, "nobody") as anybody:
        shown = await anybody.get(path)
        assert shown.status_code == 200
        assert [m["content"][0]["text"] for m in shown.json()["messages"]] == [
            *(oracle_word(1), oracle_answer(1, 3))
        ]
        assert "settings" not in shown.json()
        html = await anybody.get(path, headers={"Accept": "text/html,*/*"})
        assert html.headers["content-type"].startswith("text/html")
        assert "&lt;img onerror=1&gt;" in html.text and "<img" not in html.text
        assert oracle_answer(1, 3) in html.text and session not in html.text
        for answer in (shown, html):
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-robots-tag"] == "noindex, nofollow"
        await talk(server, session, 2)
        assert (await anybody.get(path)).json() == shown.json()  # what was shared, and no more
        await http.ask("DELETE", f"/v1/sessions/{session}/share")
        gone = await anybody.get(path)
        guesses = [await anybody.get(f"/s/{guess}") for guess in ("x", "shr_" + "A" * 44, "%00")]
        assert {code_of(answer) for answer in (gone, *guesses)} == {(404, "not_found")}
        assert len({answer.content for answer in (gone, *guesses)}) == 1
    again = await http.ask("DELETE", f"/v1/sessions/{session}/share")
    assert code_of(again) == (404, "not_found")


async def test_a_shared_link_goes_with_its_session(server: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    path = (await http.post(f"/v1/sessions/{session}/share")).json()["path"]
    assert (await http.get(path)).json()["messages"] == []
    await http.ask("DELETE", f"/v1/sessions/{session}")
    assert code_of(await http.get(path)) == (404, "not_found")


def long_file(num_messages: int) -> dict[str, Any]:
    """So many questions of 125,000 characters, each of which is six on a page."""
    content = [{"type": "text", "text": '"' * 125_000}]
    messages = [
        {"id": str(n), "parent_id": str(n - 1) if n else None, "role": "user", "content": content}
        for n in range(num_messages)
    ]
    return {**EMPTY, "messages": messages}


@pytest.mark.row("B63")
async def test_a_conversation_of_more_than_two_mebibytes_is_not_shared(http: Http) -> None:
    session = (await http.post("/v1/sessions/import", long_file(17))).json()["id"]
    refused = await http.post(f"/v1/sessions/{session}/share")
    assert code_of(refused) == (429, "quota_exceeded")
    await http.ask("DELETE", f"/v1/sessions/{session}")


async def begin_to_read(stack: AsyncExitStack, server: Server, path: str) -> bytes:
    """Ask for a page and read no more of it than the status."""
    loop = asyncio.get_running_loop()
    reader = stack.enter_context(socket.socket())
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    reader.bind((SLOW_ADDRESS, 0))
    address = urlsplit(server.url)
    await loop.sock_connect(reader, (address.hostname, address.port))
    headers = [("Accept", "text/html")]
    await loop.sock_sendall(reader, request(server, path=path, headers=headers))
    return (await loop.sock_recv(reader, 12))[-3:]


@pytest.mark.row("B63")
async def test_who_does_not_read_a_shared_page_takes_little_room_and_keeps_no_one_out(
    server: Server, http: Http
) -> None:
    session = (await http.post("/v1/sessions/import", long_file(16))).json()["id"]
    path = (await http.post(f"/v1/sessions/{session}/share")).json()["path"]
    (worker,) = server.children("server.worker")
    there = httpx2.AsyncHTTPTransport(local_address=SLOW_ADDRESS)
    elsewhere = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
    async with AsyncExitStack() as stack:
        before = worker.memory_info().rss
        statuses = [await begin_to_read(stack, server, path) for _ in range(12)]
        assert statuses == [b"200"] * 4 + [b"429"] * 8
        async with httpx2.AsyncClient(transport=elsewhere, timeout=PATIENCE) as reader:
            page = await reader.get(server.url + path, headers={"Accept": "text/html"})
            assert page.status_code == 200
            assert page.text.count("&quot;") == 16 * 125_000
            assert page.text.endswith("</html>\n")
        assert worker.memory_info().rss - before < 50_000_000  # five pages of 12 MB each
    # Who goes away gives the place back, as soon as it is seen.
    async with (
        asyncio.timeout(PATIENCE),
        httpx2.AsyncClient(transport=there, timeout=PATIENCE) as again,
    ):
        while (await again.get(server.url + path)).status_code != 200:
            pass
    await http.ask("DELETE", f"/v1/sessions/{session}")


async def unfinished_import(stack: AsyncExitStack, server: Server, token: str) -> Answer:
    """Begin to send a file and send no more: 100 while it is waited for, or the refusal."""
    headers = [
        *(("Authorization", f"Bearer {token}"), ("Content-Type", "application/json")),
        *(("Content-Length", "1000"), ("Expect", "100-continue")),
    ]
    raw = await stack.enter_async_context(RawSocket(server))
    return await raw.ask(request(server, "POST", "/v1/sessions/import", headers))


@pytest.mark.row("B48")
async def test_files_that_do_not_come_keep_no_import_of_others_waiting(
    server: Server, http: Http
) -> None:
    async with AsyncExitStack() as stack:
        mine = [await unfinished_import(stack, server, admin_token(server)) for _ in range(12)]
        assert [answer.status for answer in mine] == [100] * 2 + [429] * 10
        assert mine[-1].error["code"] == "rate_limited"
        asked = running_time()
        assert (await http.post("/v1/sessions/import", EMPTY)).status_code == 201
        assert running_time() - asked < 5  # the places of the others are free after 30 s anyway


@pytest.mark.row("B48")
async def test_so_many_files_are_read_at_once_and_the_next_has_to_come_back(
    server: Server, http: Http
) -> None:
    async with Http(server, admin_token(server)) as admin, AsyncExitStack() as stack:
        for _ in range(4):
            token = (await new_user(admin))["token"]
            for _ in range(2):
                assert (await unfinished_import(stack, server, token)).status == 100
        refused = await http.post("/v1/sessions/import", EMPTY)
        assert code_of(refused) == (503, "queue_full")
        assert refused.headers["retry-after"] == "2"
    gone = running_time()  # who goes away gives the place back, as soon as it is seen
    while (await http.post("/v1/sessions/import", EMPTY)).status_code != 201:
        assert running_time() - gone < 5


async def test_an_import_of_sixteen_mebibytes_holds_nobody_up(server: Server, http: Http) -> None:
    """As much as may be kept; somebody else's answer streams meanwhile."""
    text = "word " * 24_000  # 120 kB
    messages = [
        {
            "id": str(n),
            "parent_id": str(n - 1) if n else None,
            "role": "user",
            "content": [{"type": "text", "text": text}],
        }
        for n in range(130)
    ]
    file = {"format": "parley.session", "version": 1, "messages": messages}
    async with (
        Http(server, admin_token(server)) as other,
        Client(server, token=admin_token(server)) as bystander,
    ):
        session = (await other.new_session())["id"]
        await bystander.reply("session.subscribe", session_id=session)
        settings = {"temperature": 0, "max_output_tokens": 2000}
        response = await bystander.ask(session, oracle_word(0), settings=settings)
        await bystander.deltas(response, 1)
        made = await http.post("/v1/sessions/import", file)
        assert made.status_code == 201, made.text
        exported = await http.get(f"/v1/sessions/{made.json()['id']}/export")
        assert len(json.loads(exported.content)["messages"]) == 130
        await bystander.send("stop", response_id=response)
        assert (await bystander.done(response)).final
    await http.ask("DELETE", f"/v1/sessions/{made.json()['id']}")
