"""`LiveFeed`: confirmed subscriptions, parsed payloads, and a link that is never trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.feed import LiveFeed
from sessions.model.errors import StoreUnavailable
from sessions.model.events import (
    LiveFrame,
    LivePayload,
    LiveResponseEvents,
    LiveSessionEvents,
    ObjectEvent,
    TextEvent,
)
from sessions.model.keys import Keys
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.sessions.helpers.chat import CREATED, DONE, Chat, is_creation


class Inbox:
    """Keeps what a feed delivers and lets a test wait for it."""

    def __init__(self) -> None:
        self.payloads: asyncio.Queue[LivePayload] = asyncio.Queue()

    def __call__(self, payload: LivePayload) -> None:
        if not is_creation(payload):
            self.payloads.put_nowait(payload)

    async def next(self) -> LivePayload:
        async with asyncio.timeout(PATIENCE):
            return await self.payloads.get()


@pytest.fixture
async def feed(store: SessionStore) -> AsyncIterator[LiveFeed]:
    async with LiveFeed(store.client, store.keys) as feed:
        yield feed


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


async def test_a_response_is_heard_as_it_is_stored(
    chat: Chat, feed: LiveFeed, inbox: Inbox
) -> None:
    await feed.subscribe(chat.store.keys.session_channel(chat.session_id), inbox)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "hel", "lo")
    await chat.finish(rid, 4)
    session = await chat.store.sessions.get("alice", chat.session_id)
    messages = await inbox.next()
    assert isinstance(messages, LiveSessionEvents)
    assert (messages.session_id, messages.epoch) == (chat.session_id, session.epoch)
    assert messages.offset == 3 and len(messages.events) == 2
    assert await inbox.next() == LiveResponseEvents(rid, 1, 1, 1, (ObjectEvent(CREATED),))
    texts = (TextEvent(0, "hel"), TextEvent(0, "lo"))
    assert await inbox.next() == LiveResponseEvents(rid, 1, 2, 3, texts)
    assert await inbox.next() == LiveResponseEvents(rid, 1, 4, 4, (DONE,))
    updated = await inbox.next()
    assert isinstance(updated, LiveSessionEvents) and updated.offset == 4


async def test_what_is_published_equals_what_is_stored(
    chat: Chat, feed: LiveFeed, inbox: Inbox
) -> None:
    await feed.subscribe(chat.store.keys.session_channel(chat.session_id), inbox)
    await chat.begin("x" * 3000)
    await chat.store.sessions.update("alice", chat.session_id, title="t")
    heard = [await inbox.next() for _ in range(3)]
    stored = await chat.store.sessions.events(chat.session_id, after=1)
    assert stored is not None
    live = [event for item in heard if isinstance(item, LiveSessionEvents) for event in item.events]
    assert live == [event.data for event in stored]


async def test_a_deleted_session_says_so(chat: Chat, feed: LiveFeed, inbox: Inbox) -> None:
    await feed.subscribe(chat.store.keys.session_channel(chat.session_id), inbox)
    deleted = await chat.store.sessions.delete("alice", chat.session_id, by="admin")
    heard = await inbox.next()
    assert isinstance(heard, LiveSessionEvents) and heard.offset == deleted.offset
    assert heard.events == (
        {"type": "session.deleted", "session_id": chat.session_id, "by": "admin"},
    )


async def test_users_and_workers_are_sent_frames(
    store: SessionStore, feed: LiveFeed, inbox: Inbox
) -> None:
    heard = await store.publish_control("w0", {"type": "drain"})
    assert heard == (store.client.address.kind == "cluster")
    await feed.subscribe(store.keys.user_channel("alice"), inbox)
    await feed.subscribe(store.keys.control_channel("w1"), inbox)
    await store.publish_user("alice", {"type": "session.activity"})
    assert await store.publish_control("w1", {"type": "cancel"})
    both = [await inbox.next() for _ in range(2)]  # of two channels, which have no order
    assert LiveFrame({"type": "session.activity"}) in both
    assert LiveFrame({"type": "cancel"}) in both


async def test_nothing_is_lost_between_leaving_and_joining_again(
    store: SessionStore, feed: LiveFeed, inbox: Inbox
) -> None:
    channel = store.keys.user_channel("alice")
    for number in range(50):
        await feed.subscribe(channel, inbox)
        await store.publish_user("alice", {"n": number})
        assert await inbox.next() == LiveFrame({"n": number})
        await feed.unsubscribe(channel)


async def test_an_unsubscribed_channel_is_silent(
    store: SessionStore, feed: LiveFeed, inbox: Inbox
) -> None:
    await feed.subscribe(store.keys.user_channel("alice"), inbox)
    await feed.unsubscribe(store.keys.user_channel("alice"))
    await feed.unsubscribe("unknown")
    await store.publish_user("alice", {"late": True})
    await feed.subscribe(store.keys.user_channel("bob"), inbox)
    await store.publish_user("bob", {"n": 1})
    assert await inbox.next() == LiveFrame({"n": 1})


async def test_a_callback_that_raises_and_a_bad_payload_stop_nobody(
    chat: Chat, feed: LiveFeed, inbox: Inbox
) -> None:
    def broken(_: LivePayload) -> None:
        raise RuntimeError

    store = chat.store
    await feed.subscribe(store.keys.user_channel("alice"), broken)
    await feed.subscribe(store.keys.session_channel(chat.session_id), inbox)
    await store.publish_user("alice", {})
    for payload in (b"", b"x", b"s", b"s e x\n{", b"r a b\n", b"s e 1\n{"):
        await store.client.call("PUBLISH", store.keys.session_channel(chat.session_id), payload)
    await store.sessions.update("alice", chat.session_id, title="t")
    assert isinstance(await inbox.next(), LiveSessionEvents)


async def test_a_killed_connection_is_made_again_with_every_channel_and_then_resyncs(
    redis_server: EmbeddedRedis, store: SessionStore, feed: LiveFeed, inbox: Inbox
) -> None:
    resynced = asyncio.Event()
    feed.on_resync(resynced.set)
    for uid in ("alice", "bob"):
        await feed.subscribe(store.keys.user_channel(uid), inbox)
    for _ in range(3):
        resynced.clear()
        await store.client.call("CLIENT", "KILL", "TYPE", "pubsub")
        async with asyncio.timeout(PATIENCE):
            await resynced.wait()
        assert feed.is_connected
        await store.publish_user("alice", {"n": 1})
        await store.publish_user("bob", {"n": 2})
        assert await inbox.next() == LiveFrame({"n": 1})
        assert await inbox.next() == LiveFrame({"n": 2})


async def test_a_link_that_swallows_messages_is_replaced(
    redis_server: EmbeddedRedis, store: SessionStore, inbox: Inbox
) -> None:
    """The socket looks alive and says nothing: only the probe can tell."""
    feed = LiveFeed(store.client, store.keys, probe_seconds=0.01, probe_timeout_seconds=0.1)
    async with feed:
        resynced = asyncio.Event()
        feed.on_resync(resynced.set)
        await feed.subscribe(store.keys.user_channel("alice"), inbox)
        swallowed = feed._connection
        assert swallowed is not None
        await swallowed.send_packed_command(swallowed.pack_command("UNSUBSCRIBE"))
        async with asyncio.timeout(PATIENCE):
            await resynced.wait()
        await store.publish_user("alice", {"n": 1})
        assert await inbox.next() == LiveFrame({"n": 1})


async def test_a_living_link_is_left_alone_by_the_probe(store: SessionStore) -> None:
    feed = LiveFeed(store.client, store.keys, probe_seconds=0.001)
    resyncs: list[int] = []
    feed.on_resync(lambda: resyncs.append(1))
    inbox = Inbox()
    async with feed:
        await feed.subscribe(store.keys.user_channel("alice"), inbox)
        for number in range(200):
            await store.publish_user("alice", {"n": number})
            assert await inbox.next() == LiveFrame({"n": number})
    assert not resyncs


async def test_without_redis_a_subscription_is_refused_and_the_feed_waits(
    own_redis: EmbeddedRedis, own_store: SessionStore, inbox: Inbox
) -> None:
    async with LiveFeed(own_store.client, own_store.keys) as feed:
        await feed.subscribe("kept", inbox)
        resynced = asyncio.Event()
        feed.on_resync(resynced.set)
        own_redis.stop()
        with pytest.raises(StoreUnavailable):
            await feed.subscribe("refused", inbox)
        assert not feed.is_connected
        own_redis.start()
        async with asyncio.timeout(PATIENCE):
            await resynced.wait()
        channels = await own_store.client.call("PUBSUB", "CHANNELS")
        assert {b"kept"} == {name for name in channels if b"probe" not in name}


async def test_a_closed_feed_leaves_no_connection_and_no_task(own_store: SessionStore) -> None:
    before = asyncio.all_tasks()
    feed = LiveFeed(own_store.client, own_store.keys)
    await feed.start()
    await feed.subscribe("c", Inbox())
    await feed.close()
    await feed.close()
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
    while await own_store.client.call("PUBSUB", "CHANNELS"):
        pass  # Redis notices a closed socket in its next round


async def test_the_join_of_log_and_feed_has_no_gap_and_no_repeat(
    chat: Chat, other_store: SessionStore
) -> None:
    """Subscribe, read the log to its end, drop what was already read, go live."""
    rid = (await chat.begin()).response_id

    async def write() -> None:
        for number in range(2, 202):
            await chat.append(rid, number, str(number))

    async def join(after: int) -> list[int]:
        inbox = Inbox()
        async with LiveFeed(other_store.client, other_store.keys) as feed:
            while (await other_store.runs.get(None, rid)).sequence_number < after:
                pass
            await feed.subscribe(other_store.keys.session_channel(chat.session_id), inbox)
            numbers = [number for number, _ in await other_store.runs.events(rid)]
            while numbers[-1] < 201:
                heard = await inbox.next()
                if isinstance(heard, LiveSessionEvents):
                    continue  # of the beginning: a cluster's nodes pass it on when they like
                assert isinstance(heard, LiveResponseEvents)
                numbers += [n for n in range(heard.first, heard.last + 1) if n > numbers[-1]]
        return numbers

    _, *joined = await asyncio.gather(write(), *(join(after) for after in (1, 20, 90, 150)))
    assert all(numbers == list(range(1, 202)) for numbers in joined)


async def test_a_feed_started_before_redis_joins_it_later(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    redis = EmbeddedRedis(tmp_path_factory.mktemp("r") / "redis")
    client = RedisClient(redis.url)
    async with LiveFeed(client, Keys("p:")) as feed:
        with pytest.raises(StoreUnavailable):
            await feed.subscribe("c", Inbox())
        redis.start()
        try:
            await feed.subscribe("c", Inbox())
        finally:
            redis.stop()
    await client.close()
