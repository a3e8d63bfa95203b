"""Responses over HTTP: what a follower is sent, whatever happens while its stream looks around."""

from pathlib import Path
from typing import Any

import pytest

from server import event_stream
from server.app import Worker
from sessions.embedded import EmbeddedRedis
from tests.end_to_end.history import History
from tests.redis_server import fresh_prefix
from tests.server.in_process import (
    Dice,
    Http,
    LocalClient,
    Request,
    ScriptedEngine,
    running_workers,
)
from tests.tiny_model import oracle_word


async def ask_and_hold_last_token(
    asker: LocalClient, session: str, engine: ScriptedEngine
) -> tuple[str, Request]:
    response = await asker.ask(session, oracle_word(1), settings={"max_output_tokens": 3})
    request = engine.requests[response]
    request.is_held.add("last")
    await request.reached["last"].wait()
    return response, request


async def follow(worker: Worker, response: str, monkeypatch: pytest.MonkeyPatch) -> Http:
    """A stream that looks around all the time, and has begun."""
    monkeypatch.setattr(event_stream, "CHECK_SECONDS", 0.01)
    events = Http(worker, "GET", f"/v1/responses/{response}", "stream=true")
    await events.first("response.output_text.snapshot")
    return events


async def test_an_end_that_comes_during_a_check_is_sent(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer leaves the set of those that the check goes through."""
    dice, prefix = Dice(3), fresh_prefix()
    engine, history = ScriptedEngine(dice), History(lambda: None)
    async with (
        running_workers(redis_server.url, prefix, tmp_path, engine, dice, 2) as (first, second),
        LocalClient(first, history) as asker,
        LocalClient(second, history) as viewer,
    ):
        session = await asker.new_session()
        await viewer.reply("session.subscribe", session_id=session)
        response, request = await ask_and_hold_last_token(asker, session, engine)
        events = await follow(second, response, monkeypatch)
        run = second.store.run

        async def end_meanwhile(*arguments: Any) -> Any:
            request.released.set()
            await viewer.done(response)
            return await run(*arguments)

        monkeypatch.setattr(second.store, "run", end_meanwhile)
        await events.answered
        assert events.frames[-1]["type"] == "response.done"


async def test_a_stream_whose_end_was_given_up_ends_with_an_error(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost to another worker, and has gone with its session by now."""
    dice, prefix = Dice(4), fresh_prefix()
    engine, history = ScriptedEngine(dice), History(lambda: None)
    async with (
        running_workers(redis_server.url, prefix, tmp_path, engine, dice, 1) as (worker,),
        LocalClient(worker, history) as asker,
    ):
        session = await asker.new_session()
        response, request = await ask_and_hold_last_token(asker, session, engine)
        events = await follow(worker, response, monkeypatch)
        hub = worker.services.hub
        for subscription in hub.rooms[session].subscriptions:
            subscription.give_up_end(response)
        assert (await events.first("error"))["error"]["code"] == "response_not_found"
        request.released.set()
