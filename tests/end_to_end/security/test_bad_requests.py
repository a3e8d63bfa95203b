"""Bad input over HTTP is refused as listed, while somebody else's answer streams untouched.

The inputs are in `bad_requests.py`, and those of the websocket's frames in `bad_input.py`: what a
frame may not say, a body may not say either.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from server.worker.middleware import BODY_SECONDS
from tests.end_to_end.clients.bystander import beside_a_stream
from tests.end_to_end.clients.http_client import Http, ask_and_follow, code_of, fresh_key
from tests.end_to_end.frames.raw import (
    RawSocket,
    ask,
    cookie_of,
    elsewhere,
    log_in,
    request,
    submit_login,
)
from tests.end_to_end.oracle import bad_input, bad_requests
from tests.end_to_end.oracle.bad_requests import BadRequest
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_word

MEBIBYTE = 1024 * 1024
IMPORT = "/v1/sessions/import"
ROWS = sorted({bad.row for bad in bad_requests.REQUESTS})


@pytest.fixture
async def http(server: Server) -> AsyncIterator[Http]:
    async with Http(server) as http:
        yield http


@pytest.fixture
async def ids(server: Server, http: Http) -> dict[str, str]:
    """A session with one answer."""
    session = (await http.new_session())["id"]
    settings = {"temperature": 0, "max_output_tokens": 2}
    async with ask_and_follow(server, session, oracle_word(1), settings=settings) as stream:
        created = await stream.next("response.created")
        await stream.next("response.done")
    return {
        "$session": session,
        "$response": created["response"]["id"],
        "$message": created["response"]["message_id"],
    }


def filled(text: str, ids: dict[str, str]) -> str:
    for name, value in ids.items():
        text = text.replace(name, value)
    return text


async def state(http: Http, session_id: str) -> tuple[int, str]:
    """How many sessions there are, and what ours is: that of the bystander goes on."""
    sessions = (await http.get("/v1/sessions", params={"limit": 200})).json()["sessions"]
    (ours,) = [session for session in sessions if session["id"] == session_id]
    return len(sessions), json.dumps(ours)


@pytest.mark.row("B33", "B39", "B45", "B47", "B48")
@pytest.mark.parametrize("row", ROWS)
@beside_a_stream
async def test_a_bad_request_is_refused_and_changes_nothing(
    server: Server, http: Http, ids: dict[str, str], row: str
) -> None:
    before = await state(http, ids["$session"])
    for bad in bad_requests.REQUESTS:
        if bad.row == row:
            await refuse(http, bad, ids)
    assert await state(http, ids["$session"]) == before


async def refuse(http: Http, bad: BadRequest, ids: dict[str, str]) -> None:
    body, kind = bad_requests.encode(bad.body)
    headers = {**fresh_key(), **kind, **bad.headers}
    encoded = {name: value.encode("latin-1") for name, value in headers.items() if value or name}
    path = filled(bad.path, ids)
    options: dict[str, Any] = {} if bad.method == "GET" else {"content": body}
    answer = await http.ask(bad.method, path, headers=encoded, **options)
    assert answer.status_code in bad.statuses, (bad.name, answer.text[:300])
    error = answer.json()["error"]
    if bad.code is not None:
        assert error["code"] == bad.code, (bad.name, error)
    if bad.param is not None:
        assert error["param"] == bad.param, (bad.name, error)
    assert len(answer.content) < 1000


# ---- what a frame may not say, a body may not say either ----------------------------------------


def _from_frames() -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Row, path, body and code of each bad frame that has a body of its own over HTTP."""
    paths = {"response.create": bad_requests.RESPONSES, "session.create": bad_requests.SESSIONS}
    for bad in bad_input.FRAMES:
        if bad.row in ("B25", "B26", "B27", "B28", "B29"):
            body = json.loads(bad.text)
            if (path := paths.get(body.pop("type", ""))) is not None:
                yield bad.row, path, body, bad.code


FROM_FRAMES = list(_from_frames())


@pytest.mark.parametrize("row", sorted({row for row, *_ in FROM_FRAMES}))
@beside_a_stream
async def test_bodies_have_the_limits_of_frames(
    server: Server, http: Http, ids: dict[str, str], row: str
) -> None:
    for its_row, path, body, code in FROM_FRAMES:
        if its_row != row:
            continue
        text = filled(json.dumps(body), ids)
        headers = {**fresh_key(), "Content-Type": "application/json"}
        answer = await http.ask("POST", filled(path, ids), content=text, headers=headers)
        assert answer.json()["error"]["code"] == code, (text[:200], answer.text)
    messages = (await http.get(f"/v1/sessions/{ids['$session']}/messages")).json()["messages"]
    assert len(messages) == 2


# ---- sizes, credentials --------------------------------------------------------------------------


@pytest.mark.row("B40", "B48")
@pytest.mark.parametrize(
    ("path", "announced"),
    [
        ("/v1/sessions", MEBIBYTE + 1),
        ("/v1/sessions", 300 * MEBIBYTE),
        (IMPORT, 16 * MEBIBYTE + 1),
        (IMPORT, 10**20),
    ],
)
async def test_a_body_that_announces_too_much_is_not_read(
    server: Server, path: str, announced: int
) -> None:
    headers = [("Authorization", f"Bearer {server.token}"), ("Content-Length", str(announced))]
    answer = await ask(server, request(server, "POST", path, headers))
    assert answer.status in (413, 400)
    if answer.body:
        assert answer.error["code"] == "payload_too_large"


@pytest.mark.row("B40", "B48")
@pytest.mark.parametrize(("path", "limit"), [("/v1/sessions", 1), (IMPORT, 16)])
@beside_a_stream
async def test_a_body_in_chunks_is_read_up_to_the_limit(
    server: Server, path: str, limit: int
) -> None:
    headers = [
        *(("Authorization", f"Bearer {server.token}"), ("Transfer-Encoding", "chunked")),
        *(("Content-Type", "application/json"), ("Idempotency-Key", "b40")),
    ]
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    async with RawSocket(server) as socket:
        await socket.send(request(server, "POST", path, headers))
        for _ in range(limit * 16 + 1):
            await socket.send(chunk)
        answer = await socket.answer()
    assert (answer.status, answer.error["code"]) == (413, "payload_too_large")


@pytest.mark.row("B40")
@pytest.mark.slow
async def test_a_body_that_never_comes_is_given_up(server: Server) -> None:
    headers = [
        *(("Authorization", f"Bearer {server.token}"), ("Content-Length", "100")),
        *(("Content-Type", "application/json"), ("Idempotency-Key", "b40")),
    ]
    async with RawSocket(server) as socket:
        await socket.send(request(server, "POST", "/v1/sessions", headers) + b"{")
        assert (await socket.answer(seconds=BODY_SECONDS + 10)).status == 408
        await socket.ended()


@pytest.mark.row("B41")
@beside_a_stream
async def test_a_cookie_changes_nothing_from_another_origin(server: Server, http: Http) -> None:
    session = (await http.new_session(title="kept"))["id"]
    cookie = ("Cookie", await log_in(server))
    paths = [
        *(("POST", "/v1/sessions"), ("DELETE", f"/v1/sessions/{session}")),
        *(("PATCH", f"/v1/sessions/{session}"), ("POST", f"/v1/sessions/{session}/responses")),
        *(("POST", "/v1/ws-ticket"), ("POST", f"/v1/sessions/{session}/share")),
    ]
    before = await state(http, session)
    for origin in (None, "null", "https://evil.example", server.url + "/", "http://127.0.0.1:1"):
        for method, path in paths:
            headers = [cookie, ("Content-Type", "text/plain"), ("Content-Length", "2")]
            headers += [] if origin is None else [("Origin", origin)]
            answer = await ask(server, request(server, method, path, headers, b"{}"))
            assert (answer.status, answer.error["code"]) == (403, "forbidden"), (method, origin)
    assert await state(http, session) == before
    headers = [cookie, ("Origin", server.url)]
    answer = await ask(server, request(server, "DELETE", f"/v1/sessions/{session}", headers))
    assert answer.status == 204


@pytest.mark.row("B47")
@beside_a_stream
async def test_only_the_most_explicit_credential_counts(server: Server, http: Http) -> None:
    mine = (await http.new_session())["id"]
    cookie = ("Cookie", await log_in(server))
    path = f"/v1/sessions/{mine}"
    bearer = ("Authorization", f"Bearer {server.token}")
    forged = ("Authorization", "Bearer forged")
    key = ("X-Api-Key", server.token)
    cases = (
        ([cookie], 200),
        ([cookie, forged], 401),  # the explicit one, and no other is tried
        ([bearer, forged], 401),
        ([key], 401),
        ([key, bearer], 200),
        ([("X-Api-Key", "forged"), bearer], 200),
    )
    for headers, status in cases:
        answer = await ask(server, request(server, path=path, headers=headers), elsewhere())
        assert answer.status == status, [name for name, _ in headers]
    assert (await http.get(f"{path}?session_id=x&id=y&id=z")).status_code == 200


@pytest.mark.row("B44")
async def test_forwarded_headers_are_not_believed(server: Server, http: Http) -> None:
    headers = {
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil.example",
        "Forwarded": "for=127.0.0.1;proto=https;host=evil.example",
    }
    answer = await http.post("/v1/login-codes", headers=headers)
    opened = await submit_login(server, answer.json()["path"], headers=list(headers.items()))
    assert (opened.status, opened.header("location")) == (303, "/")
    assert cookie_of(opened).startswith("parley-")  # not the name of a secure one


async def test_refusals_are_counted(server: Server, http: Http) -> None:
    assert code_of(await http.get("/v1/sessions?limit=0")) == (400, "invalid_field")
    body = (await http.get("/metrics")).text
    assert 'code="invalid_field"' in body
