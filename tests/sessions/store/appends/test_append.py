"""Appends of many runs in one script: each hears its own outcome, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from redis.exceptions import ResponseError

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.feed import LiveFeed
from sessions.connection.rights import acl_rule
from sessions.model.errors import RunEnded, RunGone, RunLost, SequenceGap, StoreUnavailable
from sessions.model.events import LivePayload, LiveResponseEvents, TextEvent, encode_event
from sessions.model.ids import new_response_id
from sessions.model.replies import AppendReply
from sessions.store.appends.append import MAX_APPEND_BYTES, MAX_APPENDS, Append, Listener
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.sessions.conftest import make_user
from tests.sessions.helpers.chat import Chat

Outcome = AppendReply | Exception


def an_append(store: SessionStore, rid: str, first: int, text: str = "", fence: int = 1) -> Append:
    """One text entry, or a renewal."""
    entries = [encode_event(TextEvent(0, text))] if text else []
    return Append(store.appends.log_of(rid), fence, first, entries, text_length=first)


async def outcomes(
    store: SessionStore, appends: Iterable[Append], listener: Listener | None = None
) -> list[Outcome]:
    """What becomes of each, in their order."""
    appends = list(appends)
    loop = asyncio.get_running_loop()
    told: list[asyncio.Future[Outcome]] = [loop.create_future() for _ in appends]
    for append, future in zip(appends, told, strict=True):
        append.answered = future.set_result
    store.appends.send(appends, listener=listener)
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*told)


async def texts(store: SessionStore, rid: str) -> list[str]:
    events = await store.runs.events(rid, after=1)
    return [event.delta for _, event in events if isinstance(event, TextEvent)]


async def begun(store: SessionStore, count: int) -> list[str]:
    """Runs of as many sessions."""
    return [(await (await Chat.create(store)).begin()).response_id for _ in range(count)]


# ---- each its own --------------------------------------------------------------------------------


async def test_what_is_refused_to_one_run_changes_nothing_for_the_others(
    store: SessionStore,
) -> None:
    chats = [await Chat.create(store) for _ in range(8)]
    rids = [(await chat.begin()).response_id for chat in chats]
    _, lost, ended, gap, repeated, stopped, renewed, last = rids
    await store.runs.reap(lost, new_owner="w2", exited_owner="w1")
    await chats[2].finish(ended, 2)
    await chats[4].append(repeated, 2, "x")
    await store.runs.request_cancel("alice", stopped)
    appends = [an_append(store, rid, 3 if rid == gap else 2, "x") for rid in rids]
    appends[6] = an_append(store, renewed, 2)
    appends.insert(1, an_append(store, new_response_id(chats[0].session_id), 2, "x"))
    num_calls = store.client.num_calls
    (ok, *others) = await outcomes(store, appends)
    if not store.client.is_cluster:
        assert store.client.num_calls == num_calls + 1
    assert isinstance(ok, AppendReply) and not ok.cancel and not ok.repeated
    kinds = [RunGone, RunLost, RunEnded, SequenceGap, AppendReply, AppendReply, AppendReply]
    assert [type(outcome) for outcome in others] == [*kinds, AppendReply]
    assert [(o.repeated, o.cancel) for o in others if isinstance(o, AppendReply)] == [
        (True, False),
        (False, True),
        (False, False),
        (False, False),
    ]
    expected: dict[str, list[str]] = {lost: [], ended: [], gap: [], renewed: []}
    for rid in rids:
        assert await texts(store, rid) == expected.get(rid, ["x"])
    assert (await store.runs.get(None, last)).text_length == 2


async def test_a_run_that_fails_in_the_script_fails_alone(store: SessionStore) -> None:
    """Those before it in the script are stored, and so are those after it."""
    first, damaged, last = rids = await begun(store, 3)
    log = store.appends.log_of(damaged).run_keys[1]
    await store.client.calls(("UNLINK", log), ("SET", log, "no stream"))
    told = await outcomes(store, [an_append(store, rid, 2, "x") for rid in rids])
    assert [type(outcome) for outcome in told] == [AppendReply, ResponseError, AppendReply]
    assert "WRONGTYPE" in str(told[1])
    assert [await texts(store, rid) for rid in (first, last)] == [["x"], ["x"]]
    assert (await store.runs.get(None, damaged)).sequence_number == 1


async def test_a_full_memory_refuses_all_and_the_repeat_stores_each_once(
    own_store: SessionStore,
) -> None:
    rids = await begun(own_store, 3)
    await own_store.runs.reap(rids[0], new_owner="w2", exited_owner="w1")
    appends = [an_append(own_store, rid, 2, "x") for rid in rids]
    await own_store.client.call("CONFIG", "SET", "maxmemory", 1)
    told = await outcomes(own_store, appends)
    assert {type(outcome) for outcome in told} == {StoreUnavailable}
    await own_store.client.call("CONFIG", "SET", "maxmemory", 0)
    told = await outcomes(own_store, appends)
    assert [type(outcome) for outcome in told] == [RunLost, AppendReply, AppendReply]
    assert [await texts(own_store, rid) for rid in rids] == [[], ["x"], ["x"]]


async def test_a_store_that_takes_no_call_tells_each(store: SessionStore) -> None:
    rids = await begun(store, 2)
    store.client.is_trusted = False
    told = await outcomes(store, [an_append(store, rid, 2, "x") for rid in rids])
    store.client.is_trusted = True
    assert [type(outcome) for outcome in told] == [StoreUnavailable] * 2


async def test_a_writer_that_raises_keeps_no_other_one_from_its_reply(store: SessionStore) -> None:
    first, last = [an_append(store, rid, 2, "x") for rid in await begun(store, 2)]
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def fail(outcome: Outcome) -> None:
        raise KeyError

    first.answered, last.answered = fail, told.set_result
    store.appends.send([first, last])
    assert isinstance(await told, AppendReply)


async def test_a_script_takes_so_many_runs_and_bytes_and_no_more(store: SessionStore) -> None:
    chat = await Chat.create(store)
    rid = (await chat.begin()).response_id
    num_calls = store.client.num_calls
    renewals = [an_append(store, rid, 2) for _ in range(2 * MAX_APPENDS + 1)]
    assert len(await outcomes(store, renewals)) == len(renewals)
    assert store.client.num_calls == num_calls + 3
    half = "x" * (MAX_APPEND_BYTES // 2)
    told = await outcomes(store, [an_append(store, rid, n, half) for n in (2, 3, 4)])
    assert [type(outcome) for outcome in told] == [AppendReply] * 3
    assert store.client.num_calls == num_calls + 6
    assert await texts(store, rid) == [half] * 3


# ---- who hears of it -----------------------------------------------------------------------------


class Heard:
    """The numbers that a feed hears of a session's answers, after their beginning.

    A cluster may bring the beginning late, to those who subscribe after it was published.
    """

    def __init__(self) -> None:
        self._numbers = asyncio.Queue[int]()

    def __call__(self, payload: LivePayload) -> None:
        if isinstance(payload, LiveResponseEvents) and payload.first > 1:
            self._numbers.put_nowait(payload.first)

    async def next(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self._numbers.get()


@asynccontextmanager
async def listening(store: SessionStore, chat: Chat) -> AsyncIterator[tuple[LiveFeed, Heard]]:
    heard = Heard()
    async with LiveFeed(store.client, store.keys) as feed:
        await feed.subscribe(store.keys.session_channel(chat.session_id), heard)
        yield feed, heard


async def test_what_only_its_writer_hears_is_not_published_but_in_a_cluster(chat: Chat) -> None:
    store = chat.store
    rid = (await chat.begin()).response_id
    async with listening(store, chat) as (feed, heard):
        await outcomes(store, [an_append(store, rid, 2, "a")], feed)
        await chat.append(rid, 3, "b")
        assert await heard.next() == (2 if store.client.is_cluster else 3)
    assert await texts(store, rid) == ["a", "b"]


async def test_what_another_worker_hears_is_published_to_both(
    chat: Chat, other_store: SessionStore
) -> None:
    store = chat.store
    rid = (await chat.begin()).response_id
    async with (
        listening(store, chat) as (feed, heard),
        listening(other_store, chat) as (_, heard_there),
    ):
        await outcomes(store, [an_append(store, rid, 2, "a")], feed)
        assert (await heard.next(), await heard_there.next()) == (2, 2)


async def test_what_only_another_worker_hears_is_published(
    chat: Chat, other_store: SessionStore
) -> None:
    """One subscriber each time: the feed of the writer is not taken for it."""
    store = chat.store
    rid = (await chat.begin()).response_id
    channel = store.keys.session_channel(chat.session_id)
    async with listening(store, chat) as (feed, _), listening(other_store, chat) as (_, heard):
        await feed.unsubscribe(channel)
        await outcomes(store, [an_append(store, rid, 2, "a")], feed)
        assert await heard.next() == 2


async def test_a_writer_whose_feed_redis_has_lost_publishes_everything(
    chat: Chat, other_store: SessionStore
) -> None:
    """It believes that it is the one subscriber there is."""
    store = chat.store
    rid = (await chat.begin()).response_id

    class LostFeed:
        own_channel = store.keys.probe_channel("lost")

        def hears(self, channel: str) -> bool:
            return True

    async with listening(other_store, chat) as (_, heard):
        await outcomes(store, [an_append(store, rid, 2, "a")], LostFeed())
        assert await heard.next() == 2


async def test_a_user_who_may_not_count_listeners_publishes_everything(
    own_redis: EmbeddedRedis,
) -> None:
    make_user(own_redis, f"on >secret {acl_rule().replace('+pubsub|numsub ', '')}")
    store = await SessionStore.open(f"{own_redis.url}?username=parley&password=secret")
    try:
        chat = await Chat.create(store)
        rid = (await chat.begin()).response_id
        async with listening(store, chat) as (feed, heard):
            for number in (2, 3):
                await outcomes(store, [an_append(store, rid, number, "a")], feed)
                assert await heard.next() == number
    finally:
        await store.close()
