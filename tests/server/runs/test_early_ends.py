"""An end that was sent while the store was away: who was sent it hears which one is stored."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ResponseError

from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreUnavailable
from sessions.store.runs import Runs
from sessions.store.store import SessionStore
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.history import History
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.answering import until
from tests.server.helpers.appends import Outage
from tests.server.helpers.in_process import PATIENT, LocalClient, patient_history, running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

FIRST, NUM_TOKENS = 20, 5
TEXT = oracle_answer(FIRST, NUM_TOKENS)


@dataclass
class Site:
    """Two workers, and an answer of the first whose end it tells and cannot store."""

    first: Worker
    second: Worker
    history: History
    engine: ScriptedEngine
    monkeypatch: pytest.MonkeyPatch
    session: str = ""
    response: str = ""
    is_away: bool = False

    def __post_init__(self) -> None:
        self.outage = Outage(self.first.store.appends, self.monkeypatch)

    async def ask(self, client: LocalClient) -> None:
        self.session = await client.new_session()
        settings = {"max_output_tokens": NUM_TOKENS}
        self.response = await client.ask(self.session, oracle_word(FIRST), settings=settings)
        self.engine.requests[self.response].is_held.add("last")
        await self.engine.requests[self.response].reached["last"].wait()
        run = self.first.runs.local(self.response)
        assert run is not None
        await until(lambda: run.num_tokens_stored == NUM_TOKENS - 1)

    def cut_off(self) -> None:
        """The first worker cannot store what it writes."""
        self.is_away = True
        self.outage.lasts = True
        self._break(self.first.store.runs, "finish")

    def come_back(self) -> None:
        self.is_away = self.outage.lasts = False

    def lose_commands(self) -> None:
        """The first worker does not hear what the second one tells it."""
        self._break(self.second.store, "publish_control")

    def _break(self, part: Runs | SessionStore, name: str) -> None:
        self.monkeypatch.setattr(part, name, partial(self._fail, getattr(part, name)))

    async def _fail(self, call: Any, *arguments: Any, **options: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable
        return await call(*arguments, **options)

    def let_it_end(self) -> None:
        self.engine.requests[self.response].released.set()

    def dones(self, frames: list[Frame]) -> list[tuple[str, bool]]:
        """How the answer ended, as it was sent, and whether that was stored."""
        return [
            (frame["response"]["status"], frame["durable"])
            for frame in frames
            if frame["type"] == "response.done" and frame["response"]["id"] == self.response
        ]

    async def final_end(self, client: LocalClient) -> list[tuple[str, bool]]:
        await client.wait(lambda: any(durable for _, durable in self.dones(client.frames)))
        return self.dones(client.frames)


@pytest.fixture
async def site(redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    dice, prefix = Dice(5), fresh_prefix()
    engine = ScriptedEngine(dice)
    url = redis_server.url
    history = patient_history(url, prefix)
    async with running_workers(url, prefix, engine, dice, 2, PATIENT) as workers:
        first, second = workers
        yield Site(first, second, history, engine, monkeypatch)
    await asyncio.to_thread(history.check)


@contextlib.asynccontextmanager
async def watched(site: Site) -> AsyncIterator[tuple[LocalClient, LocalClient, LocalClient]]:
    """The answer, with its asker, another tab, and somebody who follows nothing but the answer."""
    async with (
        LocalClient(site.first, site.history) as asker,
        LocalClient(site.first, site.history) as tab,
        LocalClient(site.first, site.history) as follower,
    ):
        await site.ask(asker)
        await tab.reply("session.subscribe", session_id=site.session)
        await follower.send(
            "response.resume", response_id=site.response, fence=1, after_sequence_number=0
        )
        await follower.next("response.output_text.snapshot")
        yield asker, tab, follower


async def test_a_stop_promised_by_another_worker_corrects_an_end_that_was_sent(site: Site) -> None:
    async with (
        watched(site) as watching,
        LocalClient(site.second, site.history) as stopper,
        LocalClient(site.second, site.history) as elsewhere,
        LocalClient(site.first, site.history) as late,
    ):
        await elsewhere.reply("session.subscribe", session_id=site.session)
        path = f"/v1/responses/{site.response}"
        events = Http(site.first, "GET", path, "stream=true")
        await events.first("response.output_text.snapshot")
        site.cut_off()
        site.lose_commands()
        await stopper.send("stop", response_id=site.response, seen_sequence_number=3)
        assert (await stopper.next("response.cancelling"))["durable"]
        run = site.first.runs.local(site.response)
        assert run is not None and run.stopping is None  # nobody could tell its owner
        site.let_it_end()
        for client in watching:
            early = (await client.done(site.response)).done
            assert early is not None and early["response"]["text_length"] == len(TEXT)
        await events.first("response.done")
        await late.send("stop", response_id=site.response)  # it watches nothing
        await late.done(site.response)
        cancel = Http(site.first, "POST", f"{path}/cancel")
        await asyncio.sleep(0)
        site.come_back()

        for client in (*watching, late):
            ends = await site.final_end(client)
            assert ends == [("incomplete", False), ("cancelled", True)]
        await asyncio.wait_for(events.answered, PATIENCE)
        assert site.dones(events.frames) == [("incomplete", False), ("cancelled", True)]
        for client in (stopper, elsewhere):
            assert await site.final_end(client) == [("cancelled", True)]
        assert (await cancel.body())["response"]["status"] == "cancelled"
        record = await site.second.store.runs.get(None, site.response)
        message = await site.second.store.messages.get(None, site.session, record.message_id)
        assert message.text == TEXT[: len(message.text)] != TEXT
        for client in (*watching, late, stopper, elsewhere):
            assert client.answers[site.response].final == message.text
        assert events.frames[-1]["response"]["text_length"] == len(message.text)


@pytest.mark.row("C20")
async def test_the_first_stop_that_was_stored_is_the_one_that_cuts_the_text(site: Site) -> None:
    """Its owner was silent, and had by then another stop to read: that one was promised nothing."""
    async with (
        LocalClient(site.first, site.history) as asker,
        LocalClient(site.second, site.history) as stopper,
    ):
        await site.ask(asker)
        site.cut_off()
        site.lose_commands()
        await stopper.send("stop", response_id=site.response, seen_sequence_number=3)
        assert (await stopper.next("response.cancelling"))["durable"]
        await asker.send("stop", response_id=site.response)
        await asker.done(site.response)
        site.come_back()
        for client in (asker, stopper):
            assert (await site.final_end(client))[-1] == ("cancelled", True)
        record = await site.second.store.runs.get(None, site.response)
        message = await site.second.store.messages.get(None, site.session, record.message_id)
        shown = [e for e in asker.answers[site.response].frames if e["sequence_number"] <= 3]
        assert message.text == "".join(frame.get("delta", "") for frame in shown) != TEXT
        for client in (asker, stopper):
            assert client.answers[site.response].final == message.text


async def test_the_end_that_was_sent_is_sent_again_when_it_is_stored(site: Site) -> None:
    async with watched(site) as watching:
        path = f"/v1/responses/{site.response}"
        events = Http(site.first, "GET", path, "stream=true")
        await events.first("response.output_text.snapshot")
        site.cut_off()
        site.let_it_end()
        for client in watching:
            await client.done(site.response)
        await events.first("response.done")
        assert not events.answered.done()
        site.come_back()
        for client in watching:
            ends = await site.final_end(client)
            assert ends == [("incomplete", False), ("incomplete", True)]
            assert client.answers[site.response].final == TEXT
        await asyncio.wait_for(events.answered, PATIENCE)
        early, stored = [f for f in events.frames if f["type"] == "response.done"]
        assert stored == {**early, "durable": True}


async def test_of_a_session_that_is_deleted_after_an_early_end_the_end_is_sent(site: Site) -> None:
    async with watched(site) as watching, LocalClient(site.second, site.history) as other:
        site.cut_off()
        site.let_it_end()
        for client in watching:
            await client.done(site.response)
        await other.send("session.delete", session_id=site.session)
        await watching[0].next("session.deleted")
        site.come_back()
        for client in watching:
            assert (await site.final_end(client))[-1] == ("cancelled", True)


async def test_whose_session_is_lost_after_an_early_end_hears_of_that(site: Site) -> None:
    async with watched(site) as (asker, tab, follower):
        site.cut_off()
        site.let_it_end()
        for client in (asker, tab, follower):
            await client.done(site.response)
        site.history.is_data_lost = True
        await site.first.store.client.call("FLUSHALL")
        site.come_back()
        for client in (asker, tab, follower):
            await client.wait(lambda c=client: len(site.dones(c.frames)) == 2)  # type: ignore[misc]
            assert site.dones(client.frames)[1] == ("failed", False)
        for client in (asker, tab):
            assert (await client.next("session.deleted"))["by"] == "store_lost"


async def test_an_end_that_the_store_refuses_is_left_to_the_next_owner(site: Site) -> None:
    """And nobody waits for the one who could not store it."""

    async def refuse(*arguments: Any, **options: Any) -> Any:
        raise ResponseError("a script failed")

    async with LocalClient(site.first, site.history) as asker:
        await site.ask(asker)
        run = site.first.runs.local(site.response)
        assert run is not None
        with site.monkeypatch.context() as refusing:
            refusing.setattr(site.first.store.runs, "finish", refuse)
            site.let_it_end()
            await run.settled.wait()
            await asker.send("stop", response_id=site.response)
            async with asyncio.timeout(PATIENCE):
                await run.done.wait()
        site.engine.requests.clear()
        await site.second.takeover.adopt("w0")
        assert await site.final_end(asker) == [("cancelled", True)]
