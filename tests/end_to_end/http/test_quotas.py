"""Quotas on every door: one more is refused, on a websocket as over HTTP, and nothing is stored."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.clients.http_client import (
    Http,
    admin_token,
    ask_and_follow,
    code_of,
    fresh_key,
)
from tests.end_to_end.frames.raw import RawSocket, close_frame
from tests.end_to_end.site.harness import Client, Server, other_user
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word

pytestmark = pytest.mark.row("P19", "P20")


SHORT = {"temperature": 0, "max_output_tokens": 2}

StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def start(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start a server with these settings, which ends with the module."""
    with contextlib.ExitStack() as servers:

        def start_server(**settings: str) -> Server:
            folder = tmp_path_factory.mktemp("limited") / "data"
            server = Server(folder, oracle_model, None, **settings)
            servers.callback(server.close)
            return server.start()

        yield start_server


@pytest.fixture(scope="module")
def small(start: StartServer) -> Server:
    """A server on which little may be kept and used."""
    return start(
        PARLEY_MAX_SESSIONS_PER_USER="3",
        PARLEY_MAX_MESSAGES_PER_SESSION="4",
        PARLEY_MAX_TOKENS_PER_DAY="30",
        PARLEY_MAX_CONNECTIONS_PER_USER="2",
    )


@pytest.fixture
async def http(small: Server) -> AsyncIterator[Http]:
    async with Http(small) as http:
        yield http
        for session in (await http.get("/v1/sessions")).json()["sessions"]:
            await http.ask("DELETE", f"/v1/sessions/{session['id']}")


async def test_one_session_more_is_refused_on_every_door(small: Server, http: Http) -> None:
    for _ in range(3):
        session = (await http.new_session())["id"]
    refused = await http.post("/v1/sessions", headers=fresh_key())
    assert code_of(refused) == (429, "quota_exceeded")
    file = {"format": "parley.session", "version": 1, "messages": []}
    assert code_of(await http.post("/v1/sessions/import", file)) == (429, "quota_exceeded")
    async with Client(small) as client:
        error = await client.reply("session.create", idempotency_key=os.urandom(8).hex())
        assert error["error"]["code"] == "quota_exceeded"
    assert len((await http.get("/v1/sessions")).json()["sessions"]) == 3
    await http.ask("DELETE", f"/v1/sessions/{session}")
    await http.new_session()


async def test_one_message_more_is_refused_on_every_door(small: Server, http: Http) -> None:
    session = (await http.new_session())["id"]
    for number in (1, 2):
        async with ask_and_follow(small, session, oracle_word(number), settings=SHORT) as stream:
            await stream.next("response.done")
    path = f"/v1/sessions/{session}/responses"
    refused = await http.post(path, {"input": "more"}, headers=fresh_key())
    assert code_of(refused) == (429, "quota_exceeded")
    async with Client(small) as client:
        await client.reply("session.subscribe", session_id=session)
        error = await client.reply(
            "response.create", session_id=session, input="more", idempotency_key="more"
        )
        assert error["error"]["code"] == "quota_exceeded"
    assert (await http.get(f"/v1/sessions/{session}")).json()["message_count"] == 4


async def test_a_used_up_day_says_when_it_ends(small: Server) -> None:
    async with Http(small, admin_token(small)) as http:
        refused = None
        for _ in range(3):  # each answer has 16 tokens, and a prompt
            session = (await http.new_session())["id"]
            path = f"/v1/sessions/{session}/responses"
            settings = {"temperature": 0, "max_output_tokens": 16}
            refused = await http.post(
                path, {"input": oracle_word(1), "settings": settings}, headers=fresh_key()
            )
            if refused.status_code != 202:
                break
            stream = f"/v1/responses/{refused.json()['id']}?stream=true"
            assert "response.done" in (await http.get(stream)).text
        assert refused is not None and code_of(refused) == (429, "quota_exceeded")
        wait_ms = refused.json()["error"]["retry_after_ms"]
        assert 0 < wait_ms <= 86_400_000
        assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
        assert (await http.get(f"/v1/sessions/{session}")).json()["message_count"] == 0


async def test_an_answer_ends_where_its_users_day_ends(small: Server) -> None:
    async with Http(small, admin_token(small)) as http:
        user = (await http.post("/v1/admin/users", {"name": "Grace"})).json()
    async with Client(small, token=user["token"]) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 100}
        answer = await client.done(await client.ask(session, oracle_word(1), settings=settings))
        assert answer.done is not None
        response = answer.done["response"]
        assert response["status_details"]["reason"] == "quota"
        assert response["usage"]["input_tokens"] + response["usage"]["output_tokens"] == 30


async def test_what_is_left_of_the_day_is_sent_with_each_answer(small: Server) -> None:
    async with Http(small, admin_token(small)) as http:
        user = (await http.post("/v1/admin/users", {"name": "Ada"})).json()
    async with Client(small, token=user["token"]) as client:
        session = await client.new_session()
        await client.ask(session, oracle_word(1), settings=SHORT)
        (left,) = (await client.next("rate_limits.updated"))["rate_limits"]
        assert (left["name"], left["limit"], left["remaining"]) == ("tokens", 30, 30)
        assert 0 < left["reset_seconds"] <= 86_400


@pytest.fixture(scope="module")
def narrow(start: StartServer) -> Server:
    """A server that writes one answer at a time, and lets two more wait for the engine."""
    return start(
        PARLEY_MAX_NUM_SEQS="1",
        PARLEY_MAX_NUM_QUEUED_REQS="2",
        PARLEY_PACE="20",
        PARLEY_MAX_TOKENS_PER_DAY="0",
    )


async def waits_for_engine(client: Client, response: str) -> None:
    """Return when the core has said so, so that it has counted the answer."""
    expected = ("response.queued", response, "engine")

    def is_queued() -> bool:
        fields = ("type", "response_id", "reason")
        return any(tuple(map(frame.get, fields)) == expected for frame in client.frames)

    await client.wait(is_queued, "response.queued")


@pytest.mark.row("P17")
async def test_one_answer_more_than_may_wait_is_refused_until_a_place_is_free(
    narrow: Server,
) -> None:
    settings = {"temperature": 0, "max_output_tokens": 16_000}
    async with Client(narrow) as client, Http(narrow) as http:
        running = await client.ask(await client.new_session(), oracle_word(1), settings=settings)
        await client.deltas(running, 1)
        last = await client.new_session()
        waiting = []
        for _ in range(2):
            session = await client.new_session()
            waiting.append(await client.ask(session, oracle_word(2), settings=settings))
            await waits_for_engine(client, waiting[-1])
        asking = {"session_id": last, "input": oracle_word(3), "settings": settings}
        refused = await client.reply("response.create", idempotency_key="full", **asking)
        assert refused["error"]["code"] == "queue_full"
        path, body = f"/v1/sessions/{last}/responses", {"input": "x"}
        assert code_of(await http.post(path, body, headers=fresh_key())) == (503, "queue_full")
        assert (await http.get(f"/v1/sessions/{last}")).json()["message_count"] == 0
        await client.send("stop", response_id=waiting.pop())
        await client.next("response.done")
        begun = await client.reply("response.create", idempotency_key="full", **asking)
        assert begun["type"] == "response.created"
        waiting.append(begun["response"]["id"])
        await waits_for_engine(client, waiting[-1])
        again = {**asking, "session_id": await client.new_session()}
        refused = await client.reply("response.create", idempotency_key="full-too", **again)
        assert refused["error"]["code"] == "queue_full"
        for response in [running, *waiting]:
            await client.send("stop", response_id=response)
            await client.done(response)


async def test_quotas_are_shown_beside_what_is_used(small: Server) -> None:
    async with Http(small, admin_token(small)) as http:
        shown = (await http.get("/v1/admin/quotas")).json()
    assert shown["limits"] == {
        "sessions_per_user": 3,
        "messages_per_session": 4,
        "bytes_per_session": 16 * 1024 * 1024,
        "tokens_per_day": 30,
    }
    assert [row["user"]["id"] for row in shown["quotas"][:2]] == ["local", "admin"]


@pytest.mark.row("B16")
async def test_one_connection_too_many_closes_with_4429_and_the_others_stay(
    small: Server,
) -> None:
    async with RawSocket(small) as first, RawSocket(small) as second:
        for socket in (first, second):
            await socket.upgrade()
            await socket.next("connection.ready")
        async with RawSocket(small) as third:
            assert (await third.upgrade()).status == 101
            code, reason = await third.closed()
            assert code == 4429
            assert "retry_after_ms=" in reason
        async with Client(other_user(small)) as other:  # counted by user
            await other.next("connection.ready")
        await first.send(close_frame(1000))
        assert (await first.closed())[0] == 1000
        await second.send_frame("ping", t=1)
        assert (await second.next("pong"))["t"] == 1
        await connects_again(small)


async def connects_again(server: Server) -> None:
    """The place of a closed connection is free as soon as the server has noticed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with RawSocket(server) as socket:
                await socket.upgrade()
                await socket.send_frame("ping", t=2)
                with contextlib.suppress(AssertionError):
                    await socket.next("pong")
                    return
