"""`LogWriter`: an answer's own part in the appends of all."""

import asyncio
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from server.config.intervals import Intervals
from server.live.hub import Hub
from server.runs.log_writer import LogWriter
from server.runs.run import Run
from sessions.model.events import ObjectEvent
from sessions.store.appends.append import Append
from sessions.store.appends.appender import Appender
from sessions.store.store import SessionStore
from tests.server.helpers.answering import until
from tests.server.helpers.appends import Answered, Outage, Outcome, intercept
from tests.sessions.helpers.chat import CREATED, Chat


async def a_run(store: SessionStore) -> Run:
    chat = await Chat.create(store)
    rid = (await chat.begin()).response_id
    response = {"id": rid, "session_id": chat.session_id, "settings": {}}
    return Run(
        response, chat.messages[rid], uid="alice", fence=1, created=ObjectEvent(dict(CREATED))
    )


@pytest.fixture
def appender(store: SessionStore) -> Appender:
    return Appender(store.appends, renewal_seconds=Intervals().renewal)


def a_writer(run: Run, store: SessionStore, hub: Hub, appender: Appender, **more: Any) -> LogWriter:
    return LogWriter(run, appender=appender, store=store, intervals=Intervals(), hub=hub, **more)


async def stored(run: Run) -> None:
    await until(lambda: run.num_stored == run.sequence_number)


async def test_a_lost_answer_stops_and_the_others_go_on(
    store: SessionStore, hub: Hub, appender: Appender
) -> None:
    lost, kept = [await a_run(store) for _ in range(2)]
    await store.runs.reap(lost.response_id, new_owner="w2", exited_owner="w1")
    writers = [a_writer(run, store, hub, appender) for run in (lost, kept)]
    async with writers[0].running(), writers[1].running():
        for run in (lost, kept):
            run.add_text("one ", [1])
        await stored(kept)
        kept.add_text("two ", [2])
        await stored(kept)
    assert not lost.is_here and kept.is_here
    assert await store.runs.token_ids(kept.response_id) == [1, 2]
    assert len(await store.runs.events(lost.response_id)) == 1


async def test_what_was_not_answered_is_sent_again_as_it_was_and_the_rest_follows(
    store: SessionStore, hub: Hub, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await a_run(store)
    sent: list[tuple[int, int]] = []

    def note(append: Append, outcome: Outcome, answered: Answered) -> None:
        sent.append((append.first, len(append.entries)))
        answered(outcome)

    intercept(monkeypatch, store.appends, note)
    outage = Outage(store.appends, monkeypatch, lasts=True)
    writer = a_writer(run, store, hub, appender)
    async with writer.running():
        run.add_text("one ", [1])
        await until(lambda: writer._unanswered is not None)
        run.add_text("two ", [2])
        outage.lasts = False
        await stored(run)
    assert sent == [(2, 1), (3, 1)]
    assert await store.runs.token_ids(run.response_id) == [1, 2]


async def test_nothing_is_appended_until_a_stored_stop_is_heeded(
    store: SessionStore, hub: Hub, appender: Appender
) -> None:
    run = await a_run(store)
    await store.runs.request_cancel("alice", run.response_id)
    asked, heeded = asyncio.Event(), asyncio.Event()
    num_asked = 0

    async def heed() -> None:
        nonlocal num_asked
        num_asked += 1
        asked.set()
        await heeded.wait()

    writer = a_writer(run, store, hub, appender, on_stop=heed)
    async with writer.running():
        run.add_text("one ", [1])
        await asked.wait()
        run.add_text("two ", [2])
        appender._tick()
        appender._tick()
        assert (num_asked, run.num_stored, writer.is_busy) == (1, 2, True)
        heeded.set()
        await stored(run)
    assert num_asked == 2


async def test_the_end_waits_for_the_append_on_its_way(
    store: SessionStore, hub: Hub, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await a_run(store)
    held: list[tuple[Outcome, Answered]] = []
    applied = asyncio.Event()

    def hold(append: Append, outcome: Outcome, answered: Answered) -> None:
        held.append((outcome, answered))
        applied.set()

    intercept(monkeypatch, store.appends, hold)
    ended = asyncio.Event()

    async def write() -> None:
        async with a_writer(run, store, hub, appender).running():
            run.add_text("one ", [1])
            await applied.wait()
        ended.set()

    writing = asyncio.create_task(write())
    await applied.wait()
    await store.ping()
    assert not ended.is_set()
    ((outcome, answered),) = held
    answered(outcome)
    await writing
    assert run.num_stored == 2


async def test_an_append_that_fails_is_logged_and_ends_the_writing(
    store: SessionStore,
    hub: Hub,
    appender: Appender,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await a_run(store)
    failed = asyncio.Event()
    num_sent = 0

    def fail(append: Append, outcome: Outcome, answered: Answered) -> None:
        nonlocal num_sent
        num_sent += 1
        answered(ResponseError("WRONGTYPE"))
        failed.set()

    intercept(monkeypatch, store.appends, fail)
    async with a_writer(run, store, hub, appender).running():
        run.add_text("one ", [1])
        await failed.wait()
        run.add_text("two ", [2])
        appender._tick()
    assert num_sent == 1 and run.num_stored == 1
    assert cast("Any", appender)._timer is None


async def test_the_first_words_for_a_door_are_urgent_until_they_are_on_their_way(
    store: SessionStore, hub: Hub, appender: Appender
) -> None:
    run = await a_run(store)
    run.is_brought = True
    writer = a_writer(run, store, hub, appender)
    async with writer.running():
        assert not writer.is_urgent
        run.add_text("one ", [1])
        assert writer.is_urgent
        await stored(run)
        run.add_text("two ", [2])
        assert not writer.is_urgent


async def test_the_first_words_for_who_is_shown_them_unstored_are_not_urgent(
    store: SessionStore, hub: Hub, appender: Appender
) -> None:
    run = await a_run(store)
    writer = a_writer(run, store, hub, appender)
    async with writer.running():
        run.add_text("one ", [1])
        assert not writer.is_urgent
