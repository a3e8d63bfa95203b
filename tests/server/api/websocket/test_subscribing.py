"""`session.subscribe`: what was sent stands, no matter what the store does in the middle of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from server.live import catch_up
from server.live.response_log import ResponseLog, read_log
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreUnavailable
from sessions.store.messages import Messages
from sessions.store.responses import Responses
from sessions.store.store import SessionStore
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine


@dataclass(frozen=True)
class Held:
    """An answer that is held in its middle, and who may watch it."""

    owner: Worker
    other: Worker
    asker: LocalClient  # at the owner
    viewer: LocalClient  # at the other worker
    session: str
    response: str
    request: Request


@asynccontextmanager
async def held_answer(redis: EmbeddedRedis) -> AsyncIterator[Held]:
    engine, history = ScriptedEngine(Dice(0)), History(lambda: None)
    async with (
        running_workers(redis.url, fresh_prefix(), engine, Dice(0), 2) as (owner, other),
        LocalClient(owner, history) as asker,
        LocalClient(other, history) as viewer,
    ):
        session = await asker.new_session()
        response = await asker.ask(session, oracle_word(5), settings={"max_output_tokens": 6})
        request = engine.requests[response]
        request.is_held.add("mid")
        await request.reached["mid"].wait()
        yield Held(owner, other, asker, viewer, session, response, request)


async def test_a_subscription_that_fails_in_the_middle_was_never_confirmed(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = [StoreUnavailable("away")]

    async def read(store: SessionStore, uid: str | None, response_id: str) -> ResponseLog:
        if outages:
            raise outages.pop()
        return await read_log(store, uid, response_id)

    async with held_answer(redis_server) as held:
        monkeypatch.setattr(catch_up, "read_log", read)
        refused = await held.viewer.reply("session.subscribe", session_id=held.session)
        assert refused["error"]["code"] == "store_unavailable"
        assert "session.subscribed" not in {frame["type"] for frame in held.viewer.frames}
        subscribed = await held.viewer.reply("session.subscribe", session_id=held.session)
        assert subscribed["active_responses"] == [held.response]
        held.request.released.set()
        assert (await held.viewer.done(held.response)).final == oracle_answer(5, 6)


async def test_an_answer_whose_end_was_sent_meanwhile_is_not_shown_again(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, may_read = asyncio.Event(), asyncio.Event()
    read_path = Messages.path

    async def path(messages: Messages, *arguments: Any, **options: Any) -> Any:
        is_reading.set()
        await may_read.wait()
        return await read_path(messages, *arguments, **options)

    async with held_answer(redis_server) as held:
        await held.viewer.reply("session.subscribe", session_id=held.session)
        monkeypatch.setattr(Messages, "path", path)
        hub = held.other.services.hub
        await hub.data_loss.look_at(held.session, lacking=hub.rooms[held.session].epoch)
        await is_reading.wait()
        await held.viewer.send("stop", response_id=held.response)
        await held.viewer.done(held.response)
        seen = len(held.viewer.frames)
        may_read.set()
        await held.viewer.next("session.subscribed")  # the first
        await held.viewer.next("session.subscribed")
        await held.viewer.reply("session.update", session_id=held.session, title="after it")
        kinds = {frame["type"] for frame in held.viewer.frames[seen:]}
        assert not kinds & {"response.output_text.snapshot", "response.done"}


async def test_the_end_of_an_answer_that_was_stopped_while_the_state_was_read_is_sent(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, may_read = asyncio.Event(), asyncio.Event()
    read_live = Responses.live

    async def live(responses: Responses, session_id: str) -> Any:
        is_reading.set()
        await may_read.wait()
        return await read_live(responses, session_id)

    async with held_answer(redis_server) as held:
        await held.viewer.reply("session.subscribe", session_id=held.session)
        monkeypatch.setattr(Responses, "live", live)
        hub = held.owner.services.hub
        await hub.data_loss.look_at(held.session, lacking=hub.rooms[held.session].epoch)
        await is_reading.wait()
        run = held.owner.services.runs.local(held.response)
        assert run is not None
        await held.asker.send("stop", response_id=held.response)
        await run.settled.wait()
        may_read.set()
        assert (await held.asker.done(held.response)).final == (
            await held.viewer.done(held.response)
        ).final
