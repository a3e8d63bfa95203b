"""`Takeover`: what a dead worker leaves goes on with the same text, or ends with what it has."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest
from redis.exceptions import ResponseError

from engine.client.parsing.anchors import Anchor
from engine.client.parsing.events import ReasoningDelta, TextDelta
from engine.client.parsing.grammar import Field, Format, Grammar
from engine.client.parsing.parser import AnswerParser
from server.commands import cancel_response as stops
from server.commands.cancel_response import Canceller
from server.config.intervals import SHORTENED
from server.generation.prompts import Prompt
from server.live.outbox import Outbox
from server.live.response_log import reasoning_of, text_of
from server.live.sent_ends import SentEnds
from server.protocol.client_frames import CancelResponse
from server.protocol.errors import ApiError
from server.runs import producer
from server.runs.takeover import MAX_FENCE
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import RunLost, StoreUnavailable
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.ids import new_response_id, session_of
from sessions.model.quotas import Quotas
from sessions.model.records import RunRecord
from tests.end_to_end.frames.client_model import Answer
from tests.end_to_end.oracle.history import History
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.appends import Outage
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine
from tests.sessions.helpers.chat import Chat

FIRST, NUM_TOKENS, NUM_STORED = 5, 8, 3
# A stall of the machine ends no lease between an answer's beginning and its adoption.
CALM = msgspec.structs.replace(SHORTENED, lease=4.0, silence=3.0)


@dataclass
class Survivor:
    """The one worker that lives, and the answers that a dead one leaves it."""

    worker: Worker
    engine: ScriptedEngine

    async def orphan(
        self, *, num_stored: int = NUM_STORED, entries: list[Event] | None = None, **changed: Any
    ) -> str:
        """An answer of a dead worker, which had stored so many tokens of it, and these entries."""
        chat = await Chat.create(self.worker.store, uid="local")
        response_id = new_response_id(chat.session_id)
        settings = {"temperature": 0, "max_output_tokens": NUM_TOKENS, "seed": 1, "top_p": 1.0}
        response = {"id": response_id, "session_id": chat.session_id, "settings": settings}
        model = changed.pop("model", "oracle")
        await chat.begin(
            oracle_word(FIRST),
            response_id=response_id,
            owner="dead",
            model=model,
            settings=settings,
            created_event={"type": "response.created", "response": response},
        )
        if num_stored:
            words = [oracle_word(FIRST + 1 + n) for n in range(num_stored)]
            texts: list[Event] = [TextEvent(len(words[0]) * n, w) for n, w in enumerate(words)]
            if entries is not None:
                texts = entries
            started: dict[str, Any] = {"prompt_tokens": 1, "cached_tokens": 0}
            begins = ObjectEvent({"type": "response.in_progress", **started})
            known = {
                "prompt_hash": Prompt([FIRST], None, 0).hash,
                "model_fingerprint": self.worker.models.default.fingerprint,
            }
            await self.worker.store.runs.append(
                response_id,
                fence=1,
                first=2,
                events=[begins, *texts],
                token_ids=[FIRST + 1 + n for n in range(num_stored)],
                text_length=len("".join(words)),
                status="in_progress",
                fields={**known, **changed},
            )
        return response_id

    async def end_of(self, response_id: str) -> tuple[RunRecord, str]:
        """The run when it has ended, and the stored text."""
        async with asyncio.timeout(PATIENCE):
            while True:
                record = await self.worker.store.runs.get(None, response_id)
                if not record.is_live:
                    break
                await asyncio.sleep(0.01)  # the end is another worker's: only the store tells
        message = await self.worker.store.messages.get(None, record.session_id, record.message_id)
        return record, message.text

    async def adopted(self, response_id: str) -> tuple[RunRecord, str]:
        await self.worker.takeover.adopt("dead")
        return await self.end_of(response_id)


@pytest.fixture
async def survivor(redis_server: EmbeddedRedis) -> AsyncIterator[Survivor]:
    dice = Dice(0)
    engine = ScriptedEngine(dice)
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, dice, 1, CALM) as (worker,):
        yield Survivor(worker, engine)


@pytest.mark.parametrize("num_stored", [0, 1, NUM_STORED, NUM_TOKENS])
async def test_answer_of_a_dead_worker_goes_on_after_what_is_stored(
    survivor: Survivor, num_stored: int
) -> None:
    response_id = await survivor.orphan(num_stored=num_stored)
    record, text = await survivor.adopted(response_id)
    assert text == oracle_answer(FIRST, NUM_TOKENS)
    assert (record.fence, record.num_tokens) == (2, NUM_TOKENS)
    numbers = [number for number, _ in await survivor.worker.store.runs.events(response_id)]
    assert numbers == list(range(1, record.sequence_number + 1))


@pytest.mark.parametrize("num_stored", range(NUM_TOKENS + 1))
async def test_thoughts_of_a_dead_worker_go_on_after_what_is_stored(
    survivor: Survivor, num_stored: int
) -> None:
    begin, end = (Anchor((oracle_word(number),)) for number in (FIRST + 2, FIRST + 5))
    grammar = survivor.engine.grammar = Grammar(Format("words", (Field("reasoning", begin, end),)))
    entries: list[Event] = []
    parser, lengths = AnswerParser(grammar), {"text": 0, "reasoning": 0}
    for number in range(num_stored):
        for event in parser.feed(oracle_word(FIRST + 1 + number)):
            kind = "reasoning" if isinstance(event, ReasoningDelta) else "text"
            assert isinstance(event, ReasoningDelta | TextDelta)
            entries.append(TextEvent(lengths[kind], event.delta))
            if kind == "reasoning":
                where = {"text_offset": lengths[kind], "delta": event.delta}
                entries[-1] = ObjectEvent({"type": "response.reasoning_text.delta", **where})
            lengths[kind] += len(event.delta)
    response_id = await survivor.orphan(num_stored=num_stored, entries=entries)
    record, text = await survivor.adopted(response_id)
    store = survivor.worker.store
    message = await store.messages.get(None, record.session_id, record.message_id)
    words = [oracle_word(FIRST + 1 + number) for number in range(NUM_TOKENS)]
    assert text == words[0] + "".join(words[5:])
    assert message.reasoning == "".join(words[2:4]).rstrip()
    log = [event for _, event in await store.runs.events(response_id)]
    assert (text_of(log), reasoning_of(log)) == (text, message.reasoning)
    assert (record.num_tokens, record.sequence_number) == (NUM_TOKENS, len(log))


async def test_answer_whose_lease_ended_is_found_without_an_announcement(
    survivor: Survivor,
) -> None:
    record, text = await survivor.end_of(await survivor.orphan())
    assert (record.fence, text) == (2, oracle_answer(FIRST, NUM_TOKENS))


@pytest.mark.parametrize(
    "changed",
    [{"model": "other"}, {"model_fingerprint": "other"}, {"prompt_hash": "other"}],
    ids=["model", "weights", "prompt"],
)
async def test_answer_of_another_model_or_prompt_ends_with_its_text(
    survivor: Survivor, changed: dict[str, Any]
) -> None:
    record, text = await survivor.adopted(await survivor.orphan(**changed))
    assert (record.status, record.reason) == ("incomplete", "owner_lost")
    assert text == oracle_answer(FIRST, NUM_STORED)
    assert survivor.engine.num_requests == 0


@pytest.mark.parametrize("changed", [{"model": "other"}, {"model_fingerprint": "other"}])
async def test_answer_of_another_model_is_left_to_others_for_the_time_of_a_lease(
    survivor: Survivor, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    takeover, store = survivor.worker.takeover, survivor.worker.store
    monkeypatch.setattr(survivor.worker.peers, "are_known", lambda: True)
    response_id = await survivor.orphan(**changed)
    await takeover.adopt("dead")
    left = await store.runs.get(None, response_id)
    assert (left.is_live, left.fence, left.owner) == (True, 1, "dead")
    takeover._left[response_id] -= CALM.lease
    record, text = await survivor.adopted(response_id)
    assert (record.status, record.reason) == ("incomplete", "owner_lost")
    assert text == oracle_answer(FIRST, NUM_STORED)


@pytest.mark.parametrize("are_known", [False, True])
async def test_answer_that_never_began_leaves_the_index_of_live_ones(
    survivor: Survivor, are_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    takeover, store = survivor.worker.takeover, survivor.worker.store
    monkeypatch.setattr(survivor.worker.peers, "are_known", lambda: are_known)
    chat = await Chat.create(store, uid="local")
    response_id = new_response_id(chat.session_id)
    # The index is written first; then its worker died, or the store refused the rest.
    await store.runs.touch({response_id: 1})
    await takeover.take_over(response_id)
    assert await store.runs.expired() == []


async def test_answer_that_outlived_too_many_owners_fails(survivor: Survivor) -> None:
    response_id = await survivor.orphan()
    store, owner = survivor.worker.store, "dead"
    for number in range(MAX_FENCE - 1):
        await store.runs.reap(response_id, new_owner=f"dead{number}", exited_owner=owner)
        owner = f"dead{number}"
    await survivor.worker.takeover.adopt(owner)
    record, text = await survivor.end_of(response_id)
    assert (record.status, record.reason) == ("failed", "owner_lost")
    assert (record.fence, text) == (MAX_FENCE + 1, oracle_answer(FIRST, NUM_STORED))


@pytest.mark.row("S1")
async def test_answer_that_nobody_can_read_is_ended_without_its_text(survivor: Survivor) -> None:
    response_id = await survivor.orphan()
    store, owner = survivor.worker.store, "dead"
    log = store.keys.events(session_of(response_id), response_id)
    await store.client.call("XADD", log, f"{NUM_STORED + 3}-0", "d", "no JSON")
    run = store.keys.run(session_of(response_id), response_id)
    await store.client.call("HSET", run, "sequence_number", NUM_STORED + 3)
    for number in range(MAX_FENCE - 1):
        await store.runs.reap(response_id, new_owner=f"dead{number}", exited_owner=owner)
        owner = f"dead{number}"
    await survivor.worker.takeover.adopt(owner)
    record, text = await survivor.end_of(response_id)
    assert (record.status, record.reason, text) == ("failed", "owner_lost", "")
    assert (await store.responses.live(record.session_id)).active is None
    assert not survivor.worker.hub.rooms.is_claimed(response_id)


@pytest.mark.row("S1")
@pytest.mark.parametrize("way", ["adopt", "sweep"])
async def test_one_answer_that_cannot_be_ended_keeps_no_other_one_waiting(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    bad, *good = [await survivor.orphan() for _ in range(3)]
    store = survivor.worker.store
    await store.runs.request_cancel("local", bad)
    finish = store.runs.finish

    async def refuse(response_id: str, **arguments: Any) -> Any:
        if response_id == bad:
            raise ResponseError("a script failed")
        return await finish(response_id, **arguments)

    monkeypatch.setattr(store.runs, "finish", refuse)
    # The bad one is the first to be tried: its lease was the first to end.
    monkeypatch.setattr(random, "shuffle", lambda ids: ids.sort(key=lambda found: found != bad))
    if way == "adopt":
        await survivor.worker.takeover.adopt("dead")
    else:
        await survivor.worker.takeover.take_over(bad, "dead")  # raises nothing, and so in a sweep
    for response_id in good:
        record, text = await survivor.end_of(response_id)
        assert (record.fence, text) == (2, oracle_answer(FIRST, NUM_TOKENS))
    assert (await store.runs.get(None, bad)).is_live
    monkeypatch.undo()
    assert (await survivor.end_of(bad))[0].status == "cancelled"


async def test_answer_whose_tokens_say_another_text_is_not_made_worse(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survivor.engine, "resumed_text", lambda *_: "another text")
    record, text = await survivor.adopted(await survivor.orphan())
    assert (record.reason, text) == ("owner_lost", oracle_answer(FIRST, NUM_STORED))


@pytest.mark.row("P19", "P20")
@pytest.mark.parametrize(("used", "num_tokens"), [(0, 5), (4, NUM_STORED), (9, NUM_STORED)])
async def test_answer_that_is_taken_over_ends_where_its_users_day_ends(
    survivor: Survivor, used: int, num_tokens: int
) -> None:
    store = survivor.worker.store
    response_id = await survivor.orphan()
    store.context.quotas = Quotas(tokens_per_day=6)  # one of them for the prompt
    earlier = new_response_id(session_of(response_id))
    await store.budgets.charge("local", earlier, used, await store.now_ms())
    record, text = await survivor.adopted(response_id)
    assert (record.status, record.reason) == ("incomplete", "quota")
    assert text == oracle_answer(FIRST, num_tokens)


async def test_answer_whose_log_is_gone_ends_and_the_next_one_may_begin(
    survivor: Survivor,
) -> None:
    response_id = await survivor.orphan()
    store = survivor.worker.store
    await store.client.call("DEL", store.keys.events(session_of(response_id), response_id))
    record, text = await survivor.adopted(response_id)
    assert (record.status, record.reason, text) == ("failed", "store_lost", "")
    assert record.sequence_number == NUM_STORED + 3  # after all that had been numbered
    assert (await store.responses.live(record.session_id)).active is None


async def test_text_that_was_decided_and_not_stored_is_shown_first(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = oracle_answer(FIRST, NUM_STORED) + "held back "
    monkeypatch.setattr(survivor.engine, "resumed_text", lambda *_: longer)
    _, text = await survivor.adopted(await survivor.orphan())
    assert text == longer + oracle_answer(FIRST + NUM_STORED, NUM_TOKENS - NUM_STORED)


async def test_stored_stop_is_carried_out_with_the_text_that_was_seen(survivor: Survivor) -> None:
    response_id = await survivor.orphan()
    await survivor.worker.store.runs.request_cancel("local", response_id, seen=4)
    record, text = await survivor.adopted(response_id)
    assert (record.status, text) == ("cancelled", oracle_answer(FIRST, 2))
    assert survivor.engine.num_requests == 0


class Asker:
    """Stands for a connection that asks for a stop."""

    uid = "local"

    def __init__(self) -> None:
        self.outbox = Outbox(lambda: None)
        self.sent_ends = SentEnds()

    def evict(self, reason: str) -> None:
        raise AssertionError(reason)

    def put_error(self, error: ApiError, event_id: str | None) -> None:
        raise error


async def test_lease_of_a_silent_owner_is_measured_by_the_clock_of_redis(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "SILENT_OWNER_SECONDS", 0.0)
    late_ns = time.time_ns() - 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: late_ns)  # this machine's is an hour behind
    response_id = await survivor.orphan()
    asker = Asker()
    stop = CancelResponse(response_id=response_id)
    await Canceller(asker, survivor.worker.services, {}).cancel(stop, asker.sent_ends.ask())
    notice: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE):
        while "owner" not in notice:
            notice = json.loads(await asker.outbox.get())
    assert (notice["type"], notice["owner"]) == ("response.cancelling", "silent")
    assert 0 <= notice["lease_ends_in_ms"] <= CALM.lease * 1000


async def test_queued_answer_waits_for_the_one_before_it(survivor: Survivor) -> None:
    first = await survivor.orphan()
    record = await survivor.worker.store.runs.get(None, first)
    chat = Chat(survivor.worker.store, record.session_id, "local")
    second = new_response_id(chat.session_id)
    response = {"id": second, "session_id": chat.session_id, "settings": record.settings}
    await chat.begin(
        oracle_word(70),
        response_id=second,
        owner="dead",
        model="oracle",
        settings=record.settings,
        on_busy="queue",
        created_event={"type": "response.created", "response": response},
    )
    survivor.engine.requests[first].is_held.add("prefill")
    await survivor.worker.takeover.adopt("dead")
    await survivor.engine.requests[first].reached["prefill"].wait()
    assert survivor.engine.num_requests == 1
    survivor.engine.requests[first].released.set()
    assert (await survivor.end_of(first))[1] == oracle_answer(FIRST, NUM_TOKENS)
    assert (await survivor.end_of(second))[1] == oracle_answer(70, NUM_TOKENS)


async def test_worker_that_leaves_takes_nothing_over(survivor: Survivor) -> None:
    response_id = await survivor.orphan()
    survivor.worker.runs.draining = True
    await survivor.worker.takeover.adopt("dead")
    assert (await survivor.worker.store.runs.get(None, response_id)).owner == "dead"


async def test_moments_of_an_answer_are_in_its_message(survivor: Survivor) -> None:
    response_id = await survivor.orphan()
    record, _ = await survivor.adopted(response_id)
    message = await survivor.worker.store.messages.get(None, record.session_id, record.message_id)
    assert message.timings is not None
    for name in ("created_at", "started_at", "first_token_at"):
        assert message.timings[name] == getattr(record, name)
    assert abs(message.timings["done_at"] - (record.done_at or 0)) < 1000


async def test_answer_is_handed_over_whole_and_its_old_owner_writes_no_more(
    redis_server: EmbeddedRedis,
) -> None:
    dice = Dice(1)
    engine = ScriptedEngine(dice)
    prefix = fresh_prefix()
    async with running_workers(redis_server.url, prefix, engine, dice, 2) as workers:
        first, second = workers
        survivor = Survivor(first, engine)
        response_id = await survivor.orphan()
        engine.requests[response_id].is_held.add("last")
        await first.takeover.adopt("dead")
        await engine.requests[response_id].reached["last"].wait()
        await asyncio.gather(first.peers.beat(), second.peers.beat())
        await first.peers.beat()
        await first.drain(0.0, asyncio.Event(), is_crash=False)
        engine.requests[response_id].is_held.clear()
        engine.requests[response_id].aborted.clear()
        await second.takeover.take_over(response_id)
        record, text = await survivor.end_of(response_id)
        assert text == oracle_answer(FIRST, NUM_TOKENS)
        assert record.owner == "w1"
        with pytest.raises(RunLost):
            await first.store.runs.append(response_id, fence=2, first=9, events=[])


async def test_stop_that_comes_while_an_answer_is_handed_over_is_carried_out_by_its_next_owner(
    redis_server: EmbeddedRedis,
) -> None:
    dice = Dice(3)
    engine, history = ScriptedEngine(dice), History(lambda: None)
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, dice, 2) as (first, second):
        async with LocalClient(first, history) as asker, LocalClient(second, history) as viewer:
            session = await asker.new_session()
            await viewer.reply("session.subscribe", session_id=session)
            response = await asker.ask(session, oracle_word(FIRST), settings={"temperature": 0})
            engine.requests[response].is_held.add("mid")
            await asker.deltas(response, 1)
            await asyncio.gather(first.peers.beat(), second.peers.beat())
            await first.peers.beat()
            leaving = asyncio.create_task(first.drain(0.0, asyncio.Event(), is_crash=False))
            run = first.runs.local(response)
            assert run is not None
            await run.stop_asked.wait()  # by the drain itself
            assert run.is_given_up
            await asker.send("stop", response_id=response)
            await leaving
            assert await asker.closed() == 1012  # its end may come before that, or over there
            answer = await viewer.done(response)
            assert answer.done is not None
            assert answer.done["response"]["status"] == "cancelled"


def has_durable_end(answer: Answer) -> bool:
    return answer.done is not None and bool(answer.done["durable"])


@pytest.mark.row("S3")
async def test_the_end_by_the_next_owner_reaches_a_client_that_stopped_and_was_shown_more(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first owner showed what it could not store, and sent an end that it could not store."""
    dice = Dice(2)
    engine, history = ScriptedEngine(dice), History(lambda: None)
    url, prefix = redis_server.url, fresh_prefix()

    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable

    monkeypatch.setattr(producer, "FLUSH_SECONDS", 0.0)  # an event for each token that it showed
    async with running_workers(url, prefix, engine, dice, 2) as (first, second):
        async with LocalClient(first, history) as asker, LocalClient(first, history) as viewer:
            session = await asker.new_session()
            await viewer.reply("session.subscribe", session_id=session)
            settings = {"max_output_tokens": NUM_TOKENS}
            response = await asker.ask(session, oracle_word(FIRST), settings=settings)
            request = engine.requests[response]
            request.is_held.add("mid")
            await asker.deltas(response, 1)
            while True:  # only the store tells
                if (await first.store.runs.get(None, response)).num_tokens:
                    break
                await asyncio.sleep(0.01)
            Outage(first.store.appends, monkeypatch, lasts=True)
            monkeypatch.setattr(first.store.runs, "finish", fail)
            request.is_held = {"last"}
            request.released.set()
            await asyncio.sleep(0)
            request.released.clear()
            whole = oracle_answer(FIRST, NUM_TOKENS - 1)
            await asker.wait(lambda: asker.answers[response].text == whole)
            await asker.send("stop", response_id=response)
            sent = (await asker.done(response)).done
            assert sent is not None and not sent["durable"]
            await second.takeover.take_over(response, "w0")
            monkeypatch.undo()
            for client in (asker, viewer):
                await client.wait(partial(has_durable_end, client.answers[response]))
            message_id = sent["response"]["message_id"]
            stored = (await second.store.messages.get(None, session, message_id)).text
            assert whole.startswith(stored) and stored != whole
            for client in (asker, viewer):
                answer = client.answers[response]
                assert answer.done is not None and answer.final == stored
                assert answer.done["sequence_number"] < sent["sequence_number"]
            kinds = [frame["type"] for frame in asker.answers[response].frames]
            assert kinds[-2:] == ["response.done", "response.done"]  # and no text after the stop
