"""P11: what belongs to somebody else is answered like what was never there, byte for byte."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.api.rest.operation import Access, Operation
from tests.end_to_end.clients.http_client import (
    LISTED,
    Http,
    admin_token,
    ask_and_follow,
    code_of,
    fresh_key,
)
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_word

UNKNOWN = {
    "session_id": "ses_" + "A" * 22,
    "message_id": "msg_" + "A" * 22,
    "response_id": "resp_" + "A" * 33,
    "item_id": "item_" + "A" * 22,
    "conversation_id": "conv_" + "A" * 22,
}
OWNED = [
    one
    for one in LISTED
    if one.access is Access.USER and UNKNOWN.keys() & set(re.findall(r"{(\w+)}", one.path))
]
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("PATCH", "/v1/sessions/{session_id}"): {"title": "mine now"},
    ("POST", "/v1/sessions/{session_id}/responses"): {"input": "hello"},
    ("POST", "/v1/sessions/{session_id}/fork"): {"message_id": "$message_id"},
    ("POST", "/v1/sessions/{session_id}/queue"): {"input": "hello"},
    ("POST", "/v1/responses/{response_id}/steer"): {"input": "hello"},
    ("POST", "/v1/responses/{response_id}/consent"): {"call_id": "call_1", "decision": "allow"},
    ("POST", "/v1/conversations/{conversation_id}"): {"metadata": {}},
    ("POST", "/v1/conversations/{conversation_id}/items"): {
        "items": [{"role": "user", "content": "hello"}]
    },
}


@pytest.fixture
async def alice(server: Server) -> AsyncIterator[Http]:
    async with Http(server) as http:
        yield http


@pytest.fixture
async def bob(server: Server) -> AsyncIterator[Http]:
    async with Http(server, admin_token(server)) as http:
        yield http


async def ask(who: Http, one: Operation, ids: dict[str, str]) -> tuple[int, bytes]:
    body = {
        name: ids["message_id"] if value == "$message_id" else value
        for name, value in BODIES.get((one.method, one.path), {}).items()
    }
    path = one.path.format(**ids)
    options = {"json": body} if one.method != "GET" else {}
    answer = await who.ask(one.method, path, headers=fresh_key(), **options)
    return answer.status_code, answer.content


@pytest.mark.row("B46", "P11")
async def test_foreign_and_unknown_ids_are_answered_alike(
    server: Server, alice: Http, bob: Http
) -> None:
    session = (await alice.new_session(title="Secret"))["id"]
    settings = {"temperature": 0, "max_output_tokens": 3}
    async with ask_and_follow(server, session, oracle_word(30), settings=settings) as stream:
        created = await stream.next("response.created")
        await stream.next("response.done")
    await alice.post(f"/v1/sessions/{session}/share")
    theirs = {
        "session_id": session,
        "message_id": created["response"]["message_id"],
        "response_id": created["response"]["id"],
        "item_id": UNKNOWN["item_id"],
        "conversation_id": "conv_" + session.removeprefix("ses_"),
    }
    before = (await alice.get(f"/v1/sessions/{session}/export")).content
    assert len(OWNED) >= 12
    for one in OWNED:
        foreign, unknown = await ask(bob, one, theirs), await ask(bob, one, UNKNOWN)
        assert foreign == unknown, one
        assert foreign[0] == 404 and b"_not_found" in foreign[1], one
        malformed = {name: "x*" for name in theirs}
        assert await ask(bob, one, malformed) == unknown, one
    assert (await alice.get(f"/v1/sessions/{session}/export")).content == before
    assert (await alice.get(f"/v1/sessions/{session}")).json()["title"] == "Secret"


@pytest.mark.row("P11")
async def test_lists_hold_only_what_is_the_callers_own(alice: Http, bob: Http) -> None:
    mine = (await alice.new_session())["id"]
    for who, expected in ((alice, True), (bob, False)):
        page = (await who.get("/v1/sessions", params={"limit": 200})).json()
        assert (mine in [session["id"] for session in page["sessions"]]) is expected


@pytest.mark.row("B46")
@pytest.mark.parametrize("who", ["deleted", "unshared"])
async def test_what_was_deleted_is_answered_like_what_never_was(
    server: Server, alice: Http, who: str
) -> None:
    session = (await alice.new_session())["id"]
    share = (await alice.post(f"/v1/sessions/{session}/share")).json()["path"]
    if who == "deleted":
        await alice.ask("DELETE", f"/v1/sessions/{session}")
        conversation = "conv_" + session.removeprefix("ses_")
        gone = {**UNKNOWN, "session_id": session, "conversation_id": conversation}
        for one in OWNED:
            assert await ask(alice, one, gone) == await ask(alice, one, UNKNOWN), one
    else:
        await alice.ask("DELETE", f"/v1/sessions/{session}/share")
    answers = [await alice.get(path) for path in (share, "/s/shr_" + "A" * 44, "/s/x")]
    assert {code_of(answer) for answer in answers} == {(404, "not_found")}
    assert len({answer.content for answer in answers}) == 1
