"""Responses over HTTP: what a follower is sent, also if more happens before its stream reads it."""

from typing import Any

import pytest

from server.api.rest import event_stream
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreUnavailable
from sessions.model.events import ObjectEvent, TextEvent
from sessions.model.ids import new_message_id, new_response_id
from tests.end_to_end.frames.client_model import Answer
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine
from tests.sessions.helpers.chat import Chat


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
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer leaves the set of those that the check goes through."""
    dice, prefix = Dice(3), fresh_prefix()
    engine, history = ScriptedEngine(dice), History(lambda: None)
    async with (
        running_workers(redis_server.url, prefix, engine, dice, 2) as (first, second),
        LocalClient(first, history) as asker,
        LocalClient(second, history) as viewer,
    ):
        session = await asker.new_session()
        await viewer.reply("session.subscribe", session_id=session)
        response, request = await ask_and_hold_last_token(asker, session, engine)
        events = await follow(second, response, monkeypatch)
        run = second.store.runs.get

        async def end_meanwhile(*arguments: Any) -> Any:
            request.released.set()
            await viewer.done(response)
            return await run(*arguments)

        monkeypatch.setattr(second.store.runs, "get", end_meanwhile)
        await events.answered
        assert events.frames[-1]["type"] == "response.done"


@pytest.mark.row("N4")
async def test_a_long_answer_with_logprobs_is_resumed_in_one_go_by_stream_and_by_socket(
    redis_server: EmbeddedRedis,
) -> None:
    """More waits at once than a slow reader may have waiting, and the reader is not slow."""
    dice, prefix, num_tokens = Dice(5), fresh_prefix(), 4_000
    top = [{"token": f"other {place}", "logprob": -1.5} for place in range(5)]
    logprobs = ({"token": "word ", "logprob": -0.5, "top": top},)
    texts = [TextEvent(5 * place, "word ", logprobs=logprobs) for place in range(num_tokens)]
    async with (
        running_workers(redis_server.url, prefix, ScriptedEngine(dice), dice, 1) as (worker,),
        LocalClient(worker, History(lambda: None)) as asker,
        LocalClient(worker, History(lambda: None)) as client,
    ):
        chat = Chat(worker.store, await asker.new_session(), "local")
        await asker.reply("session.unsubscribe", session_id=chat.session_id)
        response_id = new_response_id(chat.session_id)
        response: dict[str, Any] = {
            "id": response_id,
            "session_id": chat.session_id,
            "message_id": new_message_id(),
            "parent_id": new_message_id(),
            "model": "oracle",
            "settings": {},
            "status": "queued",
            "created_at": 1,
        }
        created = {"type": "response.created", "response": response, "idempotency_key": "k"}
        await chat.begin(response_id=response_id, created_event=created)
        for start in range(0, num_tokens, 400):
            part = texts[start : start + 400]
            await worker.store.runs.append(
                response_id, fence=1, first=start + 2, events=part, token_ids=range(len(part))
            )
        ended = {
            **response,
            "status": "completed",
            "status_details": {"reason": "eos"},
            "timings": {"total_ms": 1},
            "usage": {"input_tokens": 1, "cached_tokens": 0, "output_tokens": num_tokens},
            "text_length": 5 * num_tokens,
        }
        done = {"type": "response.done", "response": ended, "engine": "released", "durable": True}
        await chat.finish(response_id, num_tokens + 2, events=[ObjectEvent(done)])

        events = Http(worker, "GET", f"/v1/responses/{response_id}", "stream=true&starting_after=1")
        await events.answered
        client.answers[response_id] = Answer(last=1)
        await client.send(
            "response.resume", response_id=response_id, fence=1, after_sequence_number=1
        )
        assert (await client.done(response_id)).final == "word " * num_tokens
        for frames in (events.frames, client.frames):
            deltas = [f for f in frames if f["type"] == "response.output_text.delta"]
            assert sum(len(delta["logprobs"]) for delta in deltas) == num_tokens
        assert events.frames[-1]["type"] == "response.done"


async def test_a_stream_whose_end_was_given_up_ends_with_an_error(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost to another worker, and has gone with its session by now."""
    dice, prefix = Dice(4), fresh_prefix()
    engine, history = ScriptedEngine(dice), History(lambda: None)
    async with (
        running_workers(redis_server.url, prefix, engine, dice, 1) as (worker,),
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


@pytest.mark.parametrize("begins", [True, False])
async def test_a_stream_leaves_nothing_behind_whether_it_begins_or_not(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    dice, prefix = Dice(6), fresh_prefix()
    engine, history = ScriptedEngine(dice), History(lambda: None)
    async with (
        running_workers(redis_server.url, prefix, engine, dice, 1) as (worker,),
        LocalClient(worker, history) as asker,
    ):
        session = await asker.new_session()
        response, request = await ask_and_hold_last_token(asker, session, engine)
        room = worker.services.hub.rooms[session]
        connections = worker.services.connections

        def taken() -> tuple[int, int, int]:
            return connections.num_open, len(worker.streams), len(room.subscriptions)

        before = taken()
        if begins:
            stream = await follow(worker, response, monkeypatch)
            assert taken() == tuple(number + 1 for number in before)
        else:

            async def attach(*_: Any) -> None:
                assert taken() == tuple(number + 1 for number in before)
                raise StoreUnavailable

            monkeypatch.setattr(worker.services.hub.catch_up, "attach", attach)
            stream = Http(worker, "GET", f"/v1/responses/{response}", "stream=true")
        request.released.set()
        await stream.answered
        assert stream.status == (200 if begins else 503)
        assert taken() == before
