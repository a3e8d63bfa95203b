"""`Producer`: from the engine's outputs to one end, whatever the store does meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine import AsyncLLM, CompletionOutput, RequestOutput, SamplingParams
from engine.errors import EngineDeadError, RetryableRequestError
from server import producer as producer_module
from server.hub import Hub
from server.intervals import Intervals
from server.metrics import Metrics
from server.producer import Producer
from server.response_log import read_log
from server.run import Run, Stop
from server.subscription import Subscription
from sessions.errors import StoreUnavailable
from sessions.follow import LiveFeed
from sessions.records import ObjectEvent, TextEvent
from sessions.store import SessionStore
from sessions.stored import encode_token_ids
from tests.server.watching import SilentFeed, Viewer
from tests.sessions.chat import CREATED, Chat

PARAMS = SamplingParams(max_tokens=100)
MAX_SECONDS = 300.0


def output(rid: str, text: str, finish_reason: str | None = None) -> RequestOutput:
    answer = CompletionOutput(
        index=0,
        text=text,
        token_ids=[1] if text else [],
        finish_reason=cast("Any", finish_reason),
    )
    finished = finish_reason is not None
    return RequestOutput(rid, None, None, None, [answer], finished)


class Engine:
    """Says what the test lets it say; an abort ends it."""

    def __init__(self) -> None:
        self._outputs: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()
        self.prompts: list[Any] = []
        self.ready = asyncio.Event()
        self.ready.set()

    @property
    def is_ready(self) -> bool:
        return self.ready.is_set()

    async def wait_ready(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await self.ready.wait()

    def say(self, *outputs: RequestOutput | Exception) -> None:
        for each in outputs:
            self._outputs.put_nowait(each)

    async def generate(
        self, prompt: Any, params: Any, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        if not self.is_ready:
            raise RetryableRequestError("no core")
        self.prompts.append(prompt)
        finished = False
        while not finished:
            said = await self._outputs.get()
            if isinstance(said, Exception):
                raise said
            finished = said.finished
            yield said

    async def abort(self, request_id: str) -> None:
        self.say(output(request_id, "", "abort"))


class Answering:
    """One begun answer, its producer, and somebody who watches."""

    def __init__(self, store: SessionStore, chat: Chat) -> None:
        self.store, self.chat = store, chat
        self.engine = Engine()
        self.viewer = Viewer()
        self.intervals = Intervals()
        self.has_peers = False

    async def begin(self) -> "Answering":
        self.hub = Hub(self.store, cast("LiveFeed", SilentFeed()), self.store.keys, "w1")
        begun = await self.chat.begin()
        self.rid = begun.response_id
        response = {"id": self.rid, "session_id": self.chat.session_id, "settings": {}}
        message = self.chat.messages[self.rid]
        created = ObjectEvent(dict(CREATED))
        self.run = Run(response, message, uid="alice", fence=1, created=created)
        self.hub.local_runs[self.rid] = cast("Any", self.run)
        subscription = Subscription(self.viewer, self.chat.session_id)
        await self.hub.join(subscription)
        subscription.end_join(begun.offset)
        subscription.put_events(self.rid, 1, 1, self.run.events)
        self.producer = Producer(
            self.run,
            store=self.store,
            engine=cast("AsyncLLM", self.engine),
            hub=self.hub,
            metrics=Metrics(),
            intervals=self.intervals,
            has_peers=lambda: self.has_peers,
            max_seconds=MAX_SECONDS,
        )
        return self

    def start(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self._produce())

    async def _produce(self) -> Any:
        async with self.producer.writing():
            end = await self.producer.generate([1, 2, 3], PARAMS)
        return await self.producer.finish(end)

    async def text_comes(self) -> None:
        while (await self.viewer.next())["type"] != "response.output_text.delta":
            pass

    async def stored(self) -> tuple[list[str], str]:
        """The texts in the log, and that of the message."""
        events = [event for _, event in await self.store.events(self.rid)]
        message_id = self.run.message.id
        message = await self.store.message("alice", self.chat.session_id, message_id)
        return [e.delta for e in events if isinstance(e, TextEvent)], message.text


@pytest.fixture
async def answering(store: SessionStore, chat: Chat) -> Any:
    answering = await Answering(store, chat).begin()
    yield answering
    await answering.hub.close()


async def test_an_answer_is_shown_stored_and_ended_once(answering: Answering) -> None:
    answering.engine.say(
        output(answering.rid, "one "),
        output(answering.rid, "two "),
        output(answering.rid, "", "stop"),
    )
    await answering.start()
    frames = await answering.viewer.sent()
    done = [frame for frame in frames if frame["type"] == "response.done"]
    assert [frame["response"]["status"] for frame in done] == ["completed"]
    assert done[0]["durable"] is True
    texts, message = await answering.stored()
    assert "".join(texts) == message == "one two "
    record = await answering.store.run("alice", answering.rid)
    assert (record.status, record.num_tokens) == ("completed", 2)


async def test_a_stop_keeps_what_was_shown_and_discards_what_comes(answering: Answering) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "kept "))
    await answering.text_comes()
    answering.run.stop(Stop())
    answering.engine.say(output(answering.rid, "late "), output(answering.rid, "", "abort"))
    await producing
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert (done["response"]["status"], done["response"]["text_length"]) == ("cancelled", 5)
    assert await answering.stored() == (["kept "], "kept ")


async def test_p17_an_answer_that_takes_too_long_ends_with_what_it_has(
    answering: Answering,
) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "in time, "))
    await answering.text_comes()
    scheduled = answering.run.timeline.scheduled
    assert scheduled is not None
    answering.run.timeline.scheduled = scheduled - MAX_SECONDS
    answering.engine.say(output(answering.rid, "the last "))  # the producer aborts then
    await producing
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status"] == "incomplete"
    assert done["response"]["status_details"] == {"reason": "deadline", "by": "policy"}
    assert (await answering.stored())[1] == "in time, the last "


async def test_an_answer_stopped_before_it_began_never_reaches_the_engine(
    answering: Answering,
) -> None:
    answering.run.stop(Stop())
    await answering.start()
    assert answering.engine.prompts == []
    assert (await answering.stored())[1] == ""


async def test_the_end_that_is_told_is_the_end_that_is_stored(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = answering.store.finish_response

    async def finish_while_the_stop_is_stored(response_id: str, **arguments: Any) -> Any:
        finished = await finish(response_id, **arguments)
        answering.run.timeline.note("cancel_at")
        return finished

    monkeypatch.setattr(answering.store, "finish_response", finish_while_the_stop_is_stored)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "kept "))
    await answering.text_comes()
    answering.run.stop(Stop())
    answering.engine.say(output(answering.rid, "", "abort"))
    await producing
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    log = await read_log(answering.store, "alice", answering.rid)
    assert {name: done[name] for name in log.end.data} == log.end.data


async def test_a_dead_engine_ends_the_answer_with_what_there_is(answering: Answering) -> None:
    answering.engine.say(output(answering.rid, "half "), EngineDeadError())
    await answering.start()
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status"] == "failed"
    assert done["response"]["status_details"]["reason"] == "engine_error"
    assert (await answering.stored())[1] == "half "


async def test_an_append_on_its_way_when_the_answer_ends_is_waited_for(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are taken: an end that overtakes its reply would seem to leave a gap."""
    applied, reply = asyncio.Event(), asyncio.Event()
    append, finish = answering.store.append, answering.store.finish_response

    async def slow_append(response_id: str, **arguments: Any) -> Any:
        result = await append(response_id, **arguments)
        applied.set()
        await reply.wait()
        return result

    async def finish_as_the_reply_comes(response_id: str, **arguments: Any) -> Any:
        reply.set()
        return await finish(response_id, **arguments)

    monkeypatch.setattr(answering.store, "append", slow_append)
    monkeypatch.setattr(answering.store, "finish_response", finish_as_the_reply_comes)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "one "))
    await applied.wait()
    answering.engine.say(output(answering.rid, "two "), output(answering.rid, "", "stop"))
    asyncio.get_running_loop().call_later(0.2, reply.set)
    await producing
    assert answering.run.status == "completed"
    assert await answering.stored() == (["one ", "two "], "one two ")
    record = await answering.store.run("alice", answering.rid)
    assert record.num_tokens == 2


async def test_what_redis_lost_before_the_end_is_stored_with_it_and_no_token_twice_or_never(
    answering: Answering,
) -> None:
    store, chat, rid = answering.store, answering.chat, answering.rid
    call, keys = store.client.call, store.keys

    async def is_stored(count: int) -> None:
        while True:
            if (await store.run("alice", rid)).num_tokens == count:
                return
            await asyncio.sleep(0.01)  # only the store tells

    producing = answering.start()
    answering.engine.say(output(rid, "one "))
    await is_stored(1)
    entries = await call("XRANGE", keys.events(chat.session_id, rid), "-", "+")
    answering.engine.say(output(rid, "two "))
    await is_stored(2)
    await call("DEL", keys.events(chat.session_id, rid))
    for name, fields in entries:
        await call("XADD", keys.events(chat.session_id, rid), name, *fields)
    await call("SET", keys.token_ids(chat.session_id, rid), encode_token_ids([1]))
    earlier = ("sequence_number", len(entries), "num_tokens", 1)
    await call("HSET", keys.run(chat.session_id, rid), *earlier)
    answering.engine.say(output(rid, "three", "stop"))
    await producing
    assert await answering.stored() == (["one ", "two ", "three"], "one two three")
    assert (await store.run("alice", rid)).num_tokens == 3
    assert await store.token_ids(rid) == [1, 1, 1]


@pytest.mark.parametrize("ends", [False, True])
async def test_an_append_whose_reply_was_lost_is_stored_once(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    lost, again = asyncio.Event(), asyncio.Event()
    append = answering.store.append

    async def lose_the_first_reply(response_id: str, **arguments: Any) -> Any:
        reply = await append(response_id, **arguments)
        if not lost.is_set() and arguments["events"]:
            lost.set()
            raise StoreUnavailable
        again.set()
        return reply

    monkeypatch.setattr(answering.store, "append", lose_the_first_reply)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "one "))
    await lost.wait()
    answering.engine.say(output(answering.rid, "two "))
    if not ends:
        await again.wait()
    answering.engine.say(output(answering.rid, "", "stop"))
    await producing
    assert answering.run.status == "completed"
    assert await answering.stored() == (["one ", "two "], "one two ")
    record = await answering.store.run("alice", answering.rid)
    assert (record.num_tokens, record.text_length) == (2, 8)


async def test_a_deleted_session_ends_its_answer_for_those_who_watch(
    answering: Answering,
) -> None:
    producing = answering.start()
    answering.engine.say(output(answering.rid, "half "))
    await answering.text_comes()
    answering.run.is_deleted = True
    answering.run.stop(Stop("user", "session_deleted"))
    await answering.store.delete_session("alice", answering.chat.session_id)
    await answering.engine.abort(answering.rid)
    assert await producing is None
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status_details"]["reason"] == "session_deleted"


async def test_queue_positions_are_told_at_most_twice_a_second(answering: Answering) -> None:
    progress = SimpleNamespace(scheduled=False, num_cached_tokens=0, num_tokens_ahead=70)
    for position in range(10):
        progress.queue_position = position
        answering.producer._on_progress(cast("Any", progress))
    queued = [f for f in await answering.viewer.sent() if f["type"] == "response.queued"]
    assert [frame["position"] for frame in queued] == [0]
    assert queued[0]["ahead_tokens"] == 70
    assert "eta_ms" not in queued[0]  # nothing is known of this queue yet


async def test_an_answer_whose_turn_comes_while_the_core_restarts_waits(
    answering: Answering,
) -> None:
    answering.engine.ready.clear()
    producing = answering.start()
    await asyncio.sleep(0)
    answering.engine.say(output(answering.rid, "late "), output(answering.rid, "", "stop"))
    answering.engine.ready.set()
    await producing
    assert (await answering.stored())[1] == "late "
    assert answering.run.status == "completed"


async def test_an_answer_that_waits_for_the_core_can_be_stopped(answering: Answering) -> None:
    answering.engine.ready.clear()
    producing = answering.start()
    await asyncio.sleep(0)
    answering.run.stop(Stop())
    await producing
    assert answering.run.status == "cancelled"
    assert answering.engine.prompts == []


async def test_an_answer_does_not_wait_for_the_core_for_ever(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "ENGINE_WAIT_SECONDS", 0.01)
    answering.engine.ready.clear()
    await answering.start()
    (done,) = (f for f in await answering.viewer.sent() if f["type"] == "response.done")
    assert done["response"]["status_details"] == {"reason": "engine_error"}


# ---- when another worker may have taken the answer over -----------------------------------------


class Outage:
    """Lets no append through while it lasts."""

    def __init__(self, answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lasts = False
        append = answering.store.append

        async def failing_append(response_id: str, **arguments: Any) -> Any:
            if self.lasts:
                raise StoreUnavailable
            return await append(response_id, **arguments)

        monkeypatch.setattr(answering.store, "append", failing_append)


async def until(condition: Callable[[], bool]) -> None:
    """For what only a look can tell."""
    async with asyncio.timeout(5):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def texts_of(answering: Answering) -> list[str]:
    frames = await answering.viewer.sent()
    return [f["delta"] for f in frames if f["type"] == "response.output_text.delta"]


@pytest.mark.parametrize("has_peers", [True, False])
async def test_owner_without_renewal_shows_nothing_where_others_could_take_over(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, has_peers: bool
) -> None:
    outage = Outage(answering, monkeypatch)
    answering.has_peers = has_peers
    producing = answering.start()
    answering.engine.say(output(answering.rid, "shown "))
    await answering.text_comes()
    await until(lambda: answering.run.num_stored == answering.run.sequence_number)
    outage.lasts = True
    answering.run.renewed_at -= answering.intervals.silence
    answering.engine.say(output(answering.rid, "held "))
    await until(lambda: answering.run.text() == "shown held ")
    assert await texts_of(answering) == ([] if has_peers else ["held "])
    outage.lasts = False
    answering.engine.say(output(answering.rid, "end"), output(answering.rid, "", "stop"))
    await producing
    assert "".join(await texts_of(answering)) == ("held end" if has_peers else "end")
    assert (await answering.stored())[1] == "shown held end"


async def test_owner_that_lost_its_answer_drops_what_it_held_and_shows_the_log(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(answering, monkeypatch)
    answering.has_peers = True
    producing = answering.start()
    answering.engine.say(output(answering.rid, "shown "))
    await answering.text_comes()
    await until(lambda: answering.run.num_stored == answering.run.sequence_number)
    outage.lasts = True
    answering.run.renewed_at -= answering.intervals.silence
    answering.engine.say(output(answering.rid, "held "))
    await until(lambda: answering.run.text() == "shown held ")
    await answering.store.reap(answering.rid, new_owner="w2", exited_owner="w1")
    outage.lasts = False
    assert await producing is None
    frame = await answering.viewer.next()
    assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "shown ")
    assert frame["fence"] == 2
    assert await texts_of(answering) == []


async def shown_and_queued(answering: Answering, outage: Outage) -> asyncio.Task[Any]:
    """One text was sent and stored; another is queued in time, and its reader is slow."""
    answering.has_peers = True
    producing = answering.start()
    answering.engine.say(output(answering.rid, "shown "))
    await answering.text_comes()
    await until(lambda: answering.run.num_stored == answering.run.sequence_number)
    outage.lasts = True
    answering.engine.say(output(answering.rid, "queued "))
    await until(lambda: answering.run.text() == "shown queued ")
    answering.run.renewed_at -= answering.intervals.silence
    assert await texts_of(answering) == []
    return producing


async def test_text_that_was_queued_in_time_is_not_sent_too_late(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(answering, monkeypatch)
    producing = await shown_and_queued(answering, outage)
    newcomer = Viewer()
    subscription = Subscription(newcomer, answering.chat.session_id)
    await answering.hub.join(subscription)
    await answering.hub.catch_up.attach(subscription, answering.rid)
    subscription.end_join(subscription.offset)
    assert await newcomer.sent() == []
    outage.lasts = False
    for viewer in (answering.viewer, newcomer):
        frame = await viewer.next()
        assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "shown queued ")
        assert (frame["fence"], frame["sequence_number"]) == (1, answering.run.sequence_number)
    answering.engine.say(output(answering.rid, "end"), output(answering.rid, "", "stop"))
    await producing
    assert await texts_of(answering) == ["end"]
    assert (await answering.stored())[1] == "shown queued end"


async def test_text_that_was_queued_in_time_is_never_sent_if_the_answer_is_lost(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(answering, monkeypatch)
    producing = await shown_and_queued(answering, outage)
    await answering.store.reap(answering.rid, new_owner="w2", exited_owner="w1")
    outage.lasts = False
    assert await producing is None
    frame = await answering.viewer.next()
    assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "shown ")
    assert (frame["fence"], await texts_of(answering)) == (2, [])


async def test_stop_that_could_not_be_stored_goes_to_the_next_owner(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = asyncio.Event()
    request_cancel = answering.store.request_cancel

    async def noted_request_cancel(*arguments: Any, **options: Any) -> Any:
        asked = await request_cancel(*arguments, **options)
        stored.set()
        return asked

    monkeypatch.setattr(answering.store, "request_cancel", noted_request_cancel)
    producing = answering.start()
    answering.engine.say(output(answering.rid, "shown "))
    await answering.text_comes()
    await until(lambda: answering.run.num_stored == answering.run.sequence_number)
    await answering.store.reap(answering.rid, new_owner="w2", exited_owner="w1")
    answering.run.stop(Stop(seen=2))
    await answering.engine.abort(answering.rid)
    assert await producing is None
    await stored.wait()
    record = await answering.store.run(None, answering.rid)
    assert (record.owner, record.cancel, record.seen_sequence_number) == ("w2", True, 2)
