"""What an older version left unfinished goes on: answers, what waits, keys, adapters, invitations.

0.1.0 had none of it, or its data was made when it was at rest; its login links are refused.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.end_to_end.frames.raw import cookie_of, submit_login
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.upgrades.conftest import Opened
from tests.upgrades.using import ADAPTER, GREEDY, RUNNING, begun_by

one_model = pytest.mark.parametrize("used", ["one-model"], indirect=True)


@one_model
def test_an_answer_that_was_written_goes_on_and_what_waited_is_asked(used: Opened) -> None:
    left = used.expected["running"]
    asked = {100: RUNNING, 101: GREEDY, 102: GREEDY}  # the second one by on_busy, the third queued
    wanted = []
    for word, settings in asked.items():
        wanted += [oracle_word(word), oracle_answer(word, int(settings["max_output_tokens"]))]
    assert wanted[1].startswith(left["text"]) and left["text"]
    user = as_user(used.server, left["token"])
    wait_for(lambda: texts(user, left["session"])[-1:] == wanted[-1:], PATIENCE)
    assert texts(user, left["session"]) == wanted
    answer = user.get_json(f"/v1/sessions/{left['session']}/messages")["messages"][1]
    assert answer["response_id"] == left["response"] and answer["restarts"] == 1


@one_model
async def test_a_queue_that_was_paused_goes_on_when_asked_to(used: Opened) -> None:
    session = used.expected["waiting"]
    before = await asyncio.to_thread(texts, used.server, session)
    async with watching(used, "waiting") as (client, session):
        await client.reply("queue.send", session_id=session)
        await client.done(await begun_by(client, "queued-52"))
    stored = await asyncio.to_thread(texts, used.server, session)
    asked = [
        text
        for word in (51, 52)
        for text in (oracle_word(word), oracle_answer(word, GREEDY["max_output_tokens"]))
    ]
    assert stored == before + asked


@one_model
async def test_a_question_that_is_sent_again_with_its_key_is_not_asked_twice(used: Opened) -> None:
    asked = used.expected["asked_again"]
    async with watching(used, "adapted") as (client, _):
        again = await client.reply("response.create", **asked["frame"], settings=GREEDY)
        assert again["replayed"] and again["response"]["id"] == asked["response"]
    async with watching(used, "refused") as (client, session):
        fields = {"session_id": session, "idempotency_key": "queued-55", "input": oracle_word(55)}
        kept = await client.reply("queue.add", **fields, settings={"model": "unknown"})
        assert kept["status"] == "waiting"
        other = await client.reply("queue.add", **fields, settings=GREEDY)
        assert other["error"]["code"] == "idempotency_key_reused"


@one_model
async def test_an_adapter_that_was_loaded_still_answers(used: Opened) -> None:
    async with watching(used, "adapted") as (client, session):
        settings = {**GREEDY, "model": ADAPTER}
        answer = await client.done(await client.ask(session, oracle_word(7), settings=settings))
    assert answer.done is not None and answer.done["response"]["model"] == ADAPTER
    assert answer.final == oracle_answer(7, GREEDY["max_output_tokens"])


@one_model
def test_who_was_shut_out_stays_out(used: Opened) -> None:
    for token, status in used.expected["refused_tokens"].items():
        assert used.server.get("/v1/sessions", token)[0] == status


@one_model
@pytest.mark.parametrize("link", ["login_path", "invitation"])
async def test_a_login_link_logs_its_user_in_once(used: Opened, link: str) -> None:
    first, second = [await submit_login(used.server, used.expected[link]) for _ in range(2)]
    assert (first.status, second.status) == (303, 401)
    theirs = set() if link == "invitation" else used.sessions
    assert await asyncio.to_thread(used.shown_to_browser, cookie_of(first)) == theirs


@asynccontextmanager
async def watching(used: Opened, name: str) -> AsyncIterator[tuple[Client, str]]:
    """A client that is subscribed to the session that is kept under this name, and its id."""
    session = used.expected[name]
    async with Client(used.server) as client:
        reply = await client.reply("session.subscribe", session_id=session)
        assert reply["type"] == "session.subscribed", reply
        yield client, session


def as_user(server: Server, token: str) -> Server:
    """The same server for another user."""
    other = copy.copy(server)
    other.token = token
    return other


def texts(server: Server, session: str) -> list[str]:
    """Of the messages of this session's branch, the oldest first."""
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    return ["".join(part["text"] for part in message["content"]) for message in messages]
