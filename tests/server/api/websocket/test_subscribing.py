"""`session.subscribe`: what was sent stands, whatever the store does in the middle of it."""

import asyncio
from typing import Any

import pytest

from server.live import catch_up
from server.live.response_log import ResponseLog, read_log
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreUnavailable
from sessions.store.messages import Messages
from sessions.store.responses import Responses
from sessions.store.store import SessionStore
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine


async def test_a_subscription_that_fails_in_the_middle_was_never_confirmed(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = [StoreUnavailable("away")]

    async def read(store: SessionStore, uid: str | None, response_id: str) -> ResponseLog:
        if outages:
            raise outages.pop()
        return await read_log(store, uid, response_id)

    engine, url, prefix = ScriptedEngine(Dice(0)), redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 2) as workers:
        history = History(lambda: None)
        async with (
            LocalClient(workers[0], history) as asker,
            LocalClient(workers[1], history) as viewer,
        ):
            session = await asker.new_session()
            response = await asker.ask(session, oracle_word(5), settings={"max_output_tokens": 6})
            engine.requests[response].is_held.add("mid")
            await engine.requests[response].reached["mid"].wait()
            monkeypatch.setattr(catch_up, "read_log", read)
            refused = await viewer.reply("session.subscribe", session_id=session)
            assert refused["error"]["code"] == "store_unavailable"
            assert "session.subscribed" not in {frame["type"] for frame in viewer.frames}
            subscribed = await viewer.reply("session.subscribe", session_id=session)
            assert subscribed["active_responses"] == [response]
            engine.requests[response].released.set()
            assert (await viewer.done(response)).final == oracle_answer(5, 6)


async def test_an_answer_whose_end_was_sent_meanwhile_is_not_shown_again(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, may_read = asyncio.Event(), asyncio.Event()
    read_path = Messages.path

    async def path(messages: Messages, *arguments: Any, **options: Any) -> Any:
        is_reading.set()
        await may_read.wait()
        return await read_path(messages, *arguments, **options)

    engine, url, prefix = ScriptedEngine(Dice(0)), redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 2) as workers:
        history = History(lambda: None)
        async with (
            LocalClient(workers[0], history) as asker,
            LocalClient(workers[1], history) as viewer,
        ):
            session = await asker.new_session()
            response = await asker.ask(session, oracle_word(5), settings={"max_output_tokens": 6})
            engine.requests[response].is_held.add("mid")
            await engine.requests[response].reached["mid"].wait()
            await viewer.reply("session.subscribe", session_id=session)
            monkeypatch.setattr(Messages, "path", path)
            hub = workers[1].services.hub
            await hub.data_loss.look_at(session, lacking=hub.rooms[session].epoch)
            await is_reading.wait()
            await viewer.send("stop", response_id=response)
            await viewer.done(response)
            seen = len(viewer.frames)
            may_read.set()
            await viewer.next("session.subscribed")  # the first
            await viewer.next("session.subscribed")
            await viewer.reply("session.update", session_id=session, title="after it")
            kinds = {frame["type"] for frame in viewer.frames[seen:]}
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

    engine, url, prefix = ScriptedEngine(Dice(0)), redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 2) as workers:
        history = History(lambda: None)
        async with (
            LocalClient(workers[0], history) as asker,
            LocalClient(workers[1], history) as viewer,
        ):
            session = await asker.new_session()
            response = await asker.ask(session, oracle_word(5), settings={"max_output_tokens": 6})
            engine.requests[response].is_held.add("mid")
            await engine.requests[response].reached["mid"].wait()
            await viewer.reply("session.subscribe", session_id=session)
            monkeypatch.setattr(Responses, "live", live)
            hub = workers[0].services.hub
            await hub.data_loss.look_at(session, lacking=hub.rooms[session].epoch)
            await is_reading.wait()
            run = workers[0].services.runs.local(response)
            assert run is not None
            await asker.send("stop", response_id=response)
            await run.settled.wait()
            may_read.set()
            assert (await asker.done(response)).final == (await viewer.done(response)).final
