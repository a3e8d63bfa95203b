"""A session goes, by somebody's wish or with its Redis: viewers hear its answers' ends, then that.

At the owner of an answer and at another worker, once, and after it the session counts no more.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.commands import cancel_response as stops
from server.live.response_log import ResponseLog, read_log
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.replies import CancelRequested
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import PATIENT, LocalClient, running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

ENDS = ("response.done", "session.deleted")


@dataclass
class Site:
    """Two workers, and an answer of the first that is being written."""

    workers: list[Worker]
    engine: ScriptedEngine
    history: History = field(default_factory=lambda: History(lambda: None))
    session: str = ""
    response: str = ""

    def client(self, place: int) -> LocalClient:
        return LocalClient(self.workers[place], self.history)

    async def ask(self, asker: LocalClient, *viewers: LocalClient) -> None:
        self.session = await asker.new_session()
        for viewer in viewers:
            await viewer.reply("session.subscribe", session_id=self.session)
        settings = {"max_output_tokens": 6}
        self.response = await asker.ask(self.session, oracle_word(20), settings=settings)
        self.engine.requests[self.response].is_held.add("last")
        await self.engine.requests[self.response].reached["last"].wait()
        for viewer in viewers:
            await viewer.deltas(self.response, 1)

    def release(self) -> None:
        self.engine.requests[self.response].released.set()

    async def lose(self, *names: str) -> None:
        """What Redis no longer has of the answer."""
        store = self.workers[0].store
        keys = (getattr(store.keys, name)(self.session, self.response) for name in names)
        await store.client.call("DEL", *keys)


@pytest.fixture
async def site(redis_server: EmbeddedRedis) -> AsyncIterator[Site]:
    dice = Dice(6)
    engine = ScriptedEngine(dice)
    prefix = fresh_prefix()
    async with running_workers(redis_server.url, prefix, engine, dice, 2, PATIENT) as workers:
        yield Site(workers, engine)


async def last_words(client: LocalClient) -> list[str]:
    """The ends that it was sent, when the session's has come and been followed by nothing."""
    await client.next("session.deleted")
    await client.reply("session.unsubscribe", session_id="ses_" + "A" * 22)  # after all of it
    return [frame["type"] for frame in client.frames if frame["type"] in ENDS]


@pytest.mark.row("C11")
async def test_the_loss_of_a_session_is_announced_after_the_end_of_its_answer_everywhere(
    site: Site,
) -> None:
    async with site.client(0) as asker, site.client(0) as tab, site.client(1) as elsewhere:
        await site.ask(asker, tab, elsewhere)
        await site.workers[0].store.client.call("FLUSHALL")
        for worker in site.workers:
            worker.hub.catch_up.sync_all()  # each of them finds out, and more than once
            worker.hub.spawn(worker.hub.data_loss.look_at(site.session))
        site.release()
        for client in (asker, tab, elsewhere):
            assert await last_words(client) == ["response.done", "session.deleted"]
            done = client.answers[site.response].done
            assert done is not None
            assert done["response"]["status_details"]["reason"] == "store_lost"
            assert len(client.answers[site.response].final) == done["response"]["text_length"]


@pytest.mark.row("C11")
async def test_an_answer_whose_begin_redis_lost_ends_for_viewers_everywhere(site: Site) -> None:
    async with site.client(0) as asker, site.client(1) as elsewhere, site.client(1) as late:
        await site.ask(asker, elsewhere)
        await site.lose("run", "events", "token_ids")
        await late.reply("session.subscribe", session_id=site.session)  # finds nothing of it
        site.release()
        for client in (asker, elsewhere, late):
            done = (await client.done(site.response)).done
            assert done is not None and done["response"]["status"] == "failed"
            assert len(client.answers[site.response].final) == done["response"]["text_length"]


@pytest.mark.row("C11")
@pytest.mark.parametrize("deleter", ["asker", "viewer", "rest", "elsewhere"])
async def test_the_deletion_of_a_session_is_announced_after_the_end_of_its_answer_everywhere(
    site: Site, deleter: str
) -> None:
    async with site.client(0) as asker, site.client(0) as viewer, site.client(1) as elsewhere:
        await site.ask(asker, viewer, elsewhere)
        clients = {"asker": asker, "viewer": viewer, "elsewhere": elsewhere}
        if deleter == "rest":
            http = Http(site.workers[1], "DELETE", f"/v1/sessions/{site.session}")
            await http.answered
        else:
            deleted = await clients[deleter].reply("session.delete", session_id=site.session)
            assert deleted["type"] == "session.deleted"
        for client in clients.values():
            assert await last_words(client) == ["response.done", "session.deleted"]


@pytest.mark.row("C11")
async def test_who_asks_for_a_session_that_it_has_just_deleted_still_hears_how_its_answer_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears that there is none, and what it has watched so far it goes on watching."""
    is_refused, store = asyncio.Event(), site.workers[0].store
    publish = store.runs.publish

    async def publish_late(*arguments: Any, **options: Any) -> None:
        await is_refused.wait()
        await publish(*arguments, **options)

    async with site.client(0) as asker, site.client(1) as elsewhere:
        await site.ask(asker, elsewhere)
        monkeypatch.setattr(store.runs, "publish", publish_late)
        await elsewhere.send("session.delete", session_id=site.session)
        refused = await elsewhere.reply("session.subscribe", session_id=site.session)
        assert refused["error"]["code"] == "session_not_found"
        is_refused.set()
        assert await last_words(elsewhere) == ["response.done", "session.deleted"]


@pytest.mark.row("C21")
async def test_who_stopped_an_answer_at_another_worker_has_its_whole_text_though_it_is_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not sent after the stop is in no log any more: the end must bring it."""
    is_promised, is_deleted, abort = asyncio.Event(), asyncio.Event(), site.engine.abort

    async def read_late(*arguments: Any) -> ResponseLog:
        await is_deleted.wait()
        return await read_log(*arguments)

    async def abort_late(response_id: str) -> None:
        await is_promised.wait()  # or the answer might have ended before the second stop
        await abort(response_id)

    monkeypatch.setattr(stops, "read_log", read_late)
    monkeypatch.setattr(site.engine, "abort", abort_late)
    async with site.client(0) as asker, site.client(1) as stopper, site.client(1) as unsubscribed:
        await site.ask(asker, stopper)
        for client in (stopper, unsubscribed):
            await client.send("stop", response_id=site.response)
            await client.next("response.cancelling")
        is_promised.set()
        await asker.done(site.response)
        await asker.reply("session.delete", session_id=site.session)
        is_deleted.set()
        for client in (asker, stopper, unsubscribed):
            answer = await client.done(site.response)
            assert answer.done is not None
            assert len(answer.final) == answer.done["response"]["text_length"] > 0


@pytest.mark.row("C21")
async def test_who_hears_of_its_stop_after_the_end_is_sent_that_end_though_the_session_is_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is published before the store's reply to the stop is here, and not stored later."""
    store, is_stored, is_deleted = site.workers[1].store, asyncio.Event(), asyncio.Event()
    request_cancel = store.runs.request_cancel

    async def hear_late(*arguments: Any, **options: Any) -> CancelRequested:
        stored = await request_cancel(*arguments, **options)
        is_stored.set()
        await is_deleted.wait()
        return stored

    monkeypatch.setattr(store.runs, "request_cancel", hear_late)
    async with site.client(0) as asker, site.client(1) as viewer, site.client(1) as stopper:
        await site.ask(asker, viewer)
        await stopper.send("stop", response_id=site.response)
        await is_stored.wait()
        await asker.send("stop", response_id=site.response)
        await asker.done(site.response)
        await viewer.done(site.response)
        await asker.reply("session.delete", session_id=site.session)
        await viewer.next("session.deleted")
        is_deleted.set()
        answer = await stopper.done(site.response)
        assert answer.done is not None
        assert len(answer.final) == answer.done["response"]["text_length"] > 0
        kinds = [frame["type"] for frame in stopper.frames]
        assert [it for it in kinds if it.startswith("response.")] == [
            "response.cancelling",
            "response.done",
        ]


@pytest.mark.row("C11")
async def test_sessions_that_are_deleted_count_as_no_subscriptions(site: Site) -> None:
    limit = site.workers[0].services.limits.max_subscriptions
    async with site.client(0) as client, site.client(1) as other:
        for number in range(limit + 3):
            session = await client.new_session()
            deleter = (client, other)[number % 2]
            await deleter.reply("session.delete", session_id=session)
            await client.wait(
                lambda s=session: any(  # type: ignore[misc]
                    f["type"] == "session.deleted" and f["session_id"] == s for f in client.frames
                )
            )
        deleted = [f["session_id"] for f in client.frames if f["type"] == "session.deleted"]
        assert len(deleted) == len(set(deleted)) == limit + 3
        await asyncio.sleep(0)
        assert not site.workers[0].hub.rooms.keys() & set(deleted[:-3])


async def test_a_session_that_redis_lost_counts_as_no_subscription(site: Site) -> None:
    async with site.client(0) as client:
        limit = site.workers[0].services.limits.max_subscriptions
        for _ in range(limit):
            session = await client.new_session()
        await site.workers[0].store.client.call("FLUSHALL")
        await site.workers[0].hub.data_loss.look_at(session)
        await client.next("session.deleted")
        assert await client.new_session()
