"""`QueueRunner`: what waits is begun, by some worker, and only while its user may ask."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from server.commands.queue.queue_runner import QueueRunner
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.users import Users
from sessions.model.errors import SessionNotFound
from sessions.model.queue import NextRound, derived_item_id
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.callers import CallingEngine
from tests.server.helpers.in_process import LocalClient, patient_history, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine
from tests.sessions.helpers.chat import Chat
from tests.sessions.helpers.queued import queued

Two = tuple[Worker, Worker]


@pytest.fixture
async def two(redis_server: EmbeddedRedis) -> AsyncIterator[Two]:
    dice = Dice(0)
    engine = ScriptedEngine(dice)
    async with running_workers(redis_server.url, fresh_prefix(), engine, dice, 2) as workers:
        here, there = workers
        yield here, there


async def new_session(worker: Worker, uid: str = "alice") -> str:
    created = await worker.store.sessions.create(uid, idempotency_key="key")
    return created.session.id


async def keep(worker: Worker, session: str, uid: str = "alice") -> None:
    """As a worker that dies the next moment."""
    settings = {"max_output_tokens": 3}
    item = queued(oracle_word(7), id=derived_item_id(session, "k"), settings=settings)
    await worker.store.queues.add(uid, session, item)


async def sweep(worker: Worker, session: str) -> None:
    """Have that queue looked at, as it is some time after it was added to."""
    await worker.store.queues.index.look_later(session, after_ms=-1)
    await runner_of(worker).sweep()


def runner_of(worker: Worker) -> QueueRunner:
    return worker.services.queue_changes._runner


async def until_none_waits(worker: Worker, session: str) -> None:
    """A sweep of the workers themselves may have been faster, and be about to begin it."""
    async with asyncio.timeout(PATIENCE):
        while await num_waiting(worker, session):  # noqa: ASYNC110  (nothing else tells)
            await asyncio.sleep(0.01)


async def num_waiting(worker: Worker, session: str) -> int:
    return len((await worker.store.queues.get(None, session)).items)


async def test_what_nobody_has_begun_in_time_is_found(two: Two) -> None:
    here, _ = two
    session = await new_session(here)
    await keep(here, session)
    await sweep(here, session)
    await until_none_waits(here, session)
    _, answer = (await here.store.messages.path("alice", session)).messages
    assert answer.response_id is not None


async def test_a_worker_that_leaves_leaves_it_to_the_others(two: Two) -> None:
    here, there = two
    here.runs.draining = True
    session = await new_session(here)
    await keep(here, session)
    assert await runner_of(here).advance(session)
    assert await num_waiting(here, session) == 1
    await sweep(there, session)
    await until_none_waits(here, session)


async def test_nothing_is_asked_for_a_user_whom_an_admin_has_disabled(two: Two) -> None:
    here, _ = two
    users = Users(here.store.client, here.store.keys)
    user = await users.create("Alice")
    session = await new_session(here, user.uid)
    await keep(here, session, user.uid)
    await users.update(user.uid, disabled=True)
    await sweep(here, session)
    assert await num_waiting(here, session) == 1
    await users.update(user.uid, disabled=False)
    await sweep(here, session)
    await until_none_waits(here, session)


async def test_a_session_that_is_gone_is_forgotten(two: Two) -> None:
    here, _ = two
    session = await new_session(here)
    await keep(here, session)
    await here.store.sessions.delete("alice", session)
    with pytest.raises(SessionNotFound):
        await runner_of(here).advance(session)
    await sweep(here, session)
    assert await here.store.client.call("ZSCORE", here.store.keys.queues, session) is None


async def test_its_viewers_see_an_answer_that_nobody_asked_for_just_now(
    redis_server: EmbeddedRedis,
) -> None:
    url, prefix, dice = redis_server.url, fresh_prefix(), Dice(0)
    async with running_workers(url, prefix, ScriptedEngine(dice), dice, 2) as (here, there):
        async with contextlib.AsyncExitStack() as stack:
            history = patient_history(url, prefix)
            viewers = [
                await stack.enter_async_context(LocalClient(worker, history))
                for worker in (here, there)
            ]
            session = await viewers[0].new_session()
            await viewers[1].reply("session.subscribe", session_id=session)
            uid = (await here.store.sessions.get(None, session)).uid
            await keep(here, session, uid)
            await runner_of(here).advance(session)
            for viewer in viewers:
                created = await viewer.next("response.created")
                answer = await viewer.done(created["response"]["id"])
                assert answer.final == "".join(map(oracle_word, (8, 9, 10)))


# ---- what follows by itself ----------------------------------------------------------------------


async def ended_with_calls(worker: Worker, **settings: object) -> Chat:
    """A session whose answer has ended with a call, and what is to follow it."""
    chat = Chat(worker.store, await new_session(worker))
    begun = await chat.begin(oracle_word(3))
    item = {"type": "function_call_output", "call_id": "call_1", "output": oracle_word(20)}
    call = {"type": "function_call", "call_id": "call_1", "name": "t", "arguments": "{}"}
    message = replace(
        chat.messages[begun.response_id],
        status="completed",
        tool_calls=[{**call, "status": "completed"}],
        tool_outputs=[item],
    )
    following = NextRound(
        response_id=begun.response_id,
        message_id=message.id,
        settings={"model": "oracle", "temperature": 0, "max_output_tokens": 2, "seed": 1}
        | settings,
    )
    await chat.finish(begun.response_id, 2, message=message, next_round=following)
    return chat


async def roles_in(chat: Chat) -> list[str]:
    page = await chat.store.messages.path(None, chat.session_id)
    return [message.role for message in page.messages]


async def next_round(chat: Chat) -> NextRound | None:
    return (await chat.store.queues.get(None, chat.session_id)).next_round


@pytest.fixture
async def calling(redis_server: EmbeddedRedis) -> AsyncIterator[Two]:
    """Workers whose model can be offered tools."""
    engine = CallingEngine()
    async with running_workers(redis_server.url, fresh_prefix(), engine, Dice(0), 2) as workers:
        here, there = workers
        yield here, there


async def test_a_round_that_nobody_has_begun_in_time_is_found_and_begins_once(
    calling: Two,
) -> None:
    here, there = calling
    chat = await ended_with_calls(here)
    await keep(here, chat.session_id)
    for worker in (here, there, here):
        await here.store.queues.rounds.look_later(chat.session_id, after_ms=-1)
        await runner_of(worker).sweep()
    assert (await roles_in(chat))[:4] == ["user", "assistant", "tool", "assistant"]
    assert await next_round(chat) is None


async def test_a_round_whose_message_an_older_worker_has_passed_over_is_dropped(
    calling: Two,
) -> None:
    here, _ = calling
    chat = await ended_with_calls(here)
    kept = await next_round(chat)
    assert kept is not None
    asked = await chat.begin("something else")
    await chat.finish(asked.response_id, 2)
    key = here.store.keys.session(chat.session_id, "m")
    await here.store.client.call("HSET", key, "next_round", kept.raw)  # it knows no such field
    await runner_of(here).advance(chat.session_id)
    assert await next_round(chat) is None
    assert await roles_in(chat) == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("why", ["locked", "model"])
async def test_a_round_that_can_never_be_asked_gives_way(calling: Two, why: str) -> None:
    here, _ = calling
    chat = await ended_with_calls(here, **({"model": "none"} if why == "model" else {}))
    key = here.store.keys.session(chat.session_id, "m")
    if why == "locked":
        await here.store.client.call("HSET", key, "locked", "for a reason")
    await runner_of(here).advance(chat.session_id)
    assert await next_round(chat) is None
    assert await roles_in(chat) == ["user", "assistant"]


async def test_a_worker_that_leaves_leaves_the_round_to_the_others(calling: Two) -> None:
    here, there = calling
    chat = await ended_with_calls(here)
    here.runs.draining = True
    assert await runner_of(here).advance(chat.session_id)
    assert await next_round(chat) is not None
    await runner_of(there).advance(chat.session_id)
    assert await roles_in(chat) == ["user", "assistant", "tool", "assistant"]
