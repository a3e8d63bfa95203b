"""`Hub`: viewers hear of their rooms whichever way an event comes, and however often."""

import asyncio
import random
from typing import Any, cast

import pytest

from server.live import hub as hub_module
from server.live.hub import Hub
from server.live.subscription import Subscription
from server.protocol.server_frames import (
    ConnectionDegraded,
    SessionActivity,
    SessionDeleted,
    SessionUnsubscribed,
)
from sessions.model.errors import SessionNotFound, StoreUnavailable
from sessions.model.events import LiveFrame, LiveResponseEvents, LiveSessionEvents, TextEvent
from sessions.store.store import SessionStore
from tests.server.helpers.entries import CREATED
from tests.server.helpers.watching import SilentFeed, Viewer, join, kinds, publish
from tests.sessions.helpers.chat import Chat


async def test_session_events_in_the_wrong_order_are_sent_in_the_right_one(
    hub: Hub, chat: Chat
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    first = subscription.offset + 1
    for offset in (first + 2, first + 1, first, first + 1, first + 3):
        publish(hub, chat, offset)
    frames = await viewer.sent()
    assert [frame["offset"] for frame in frames] == [first, first + 1, first + 2, first + 3]
    assert {frame["session_id"] for frame in frames} == {chat.session_id}


async def test_the_same_event_from_memory_and_from_redis_is_sent_once(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    session = await chat.store.sessions.get(chat.uid, chat.session_id)
    offset = subscription.offset + 1
    payload = LiveSessionEvents(
        chat.session_id, session.epoch, offset, ({"type": "message.created", "n": offset},)
    )
    channel = chat.store.keys.session_channel(chat.session_id)
    publish(hub, chat, offset)
    feed.deliver(channel, payload)
    feed.deliver(channel, payload)
    assert [frame["offset"] for frame in await viewer.sent()] == [offset]


async def test_answers_of_this_worker_are_heard_from_memory_alone(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED])
    hub.rooms.add_run(rid, cast("Any", None))
    hub.rooms.claim(rid)
    echo = LiveResponseEvents(rid, 1, 2, 2, (TextEvent(0, "echo"),))
    feed.deliver(chat.store.keys.session_channel(chat.session_id), echo)
    assert kinds(await viewer.sent()) == ["created"]
    hub.publish_events(rid, 1, 2, [TextEvent(0, "one ")])
    assert [frame["delta"] for frame in await viewer.sent()] == ["one "]


async def test_frames_for_the_sidebar_go_to_those_who_do_not_watch(hub: Hub, chat: Chat) -> None:
    watching, other, asker, stranger = Viewer(), Viewer(), Viewer(), Viewer("bob")
    for viewer in (watching, other, asker, stranger):
        await hub.add_watcher(viewer)
    await join(hub, chat, watching)
    frame = SessionUnsubscribed(session_id=chat.session_id)
    await hub.tell_user("alice", chat.session_id, frame, besides=asker)
    counts = [len(await viewer.sent()) for viewer in (watching, other, asker, stranger)]
    assert counts == [0, 1, 0, 0]
    activity = SessionActivity(session_id=chat.session_id, active=True)
    await hub.tell_user("alice", chat.session_id, activity)
    counts = [len(await viewer.sent()) for viewer in (watching, other, asker, stranger)]
    assert counts == [1, 1, 1, 0]


async def test_nothing_brings_a_deleted_chat_back_into_a_sidebar(hub: Hub, chat: Chat) -> None:
    other, asker = Viewer(), Viewer()
    for viewer in (other, asker):
        await hub.add_watcher(viewer)
    session = await chat.store.sessions.get("alice", chat.session_id)
    await hub.publish_updated(session)
    assert kinds(await other.sent()) == kinds(await asker.sent()) == ["session.updated"]
    gone = SessionDeleted(session_id=chat.session_id, offset=1, by="user")
    await hub.tell_user("alice", chat.session_id, gone, besides=asker)
    await hub.publish_updated(session)
    assert kinds(await other.sent()) == ["session.deleted"]
    assert kinds(await asker.sent()) == []


async def test_a_sidebar_frame_is_encoded_once_for_all_of_its_viewers(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewers = [Viewer() for _ in range(3)]
    for viewer in viewers:
        await hub.add_watcher(viewer)
    encoded: list[Any] = []

    def encode_and_count(frame: Any) -> bytes:
        encoded.append(frame)
        return b'{"type":"x"}'

    monkeypatch.setattr(hub_module, "encode", encode_and_count)
    await hub.tell_user("alice", "s", SessionActivity(session_id="s", active=True))
    assert [kinds(await viewer.sent()) for viewer in viewers] == [["x"], ["x"], ["x"]]
    assert len(encoded) == 1


async def test_sidebar_frames_of_other_workers_arrive_and_our_own_do_not_come_twice(
    hub: Hub, store: SessionStore, feed: SilentFeed
) -> None:
    viewer = Viewer()
    await hub.add_watcher(viewer)
    for origin in ("w1", "w2"):
        data = {"origin": origin, "uid": "alice", "session_id": "s", "frame": {"type": origin}}
        feed.deliver(store.keys.user_channel("alice"), LiveFrame(data))
    assert kinds(await viewer.sent()) == ["w2"]


async def test_the_last_to_leave_closes_the_room(hub: Hub, chat: Chat, feed: SilentFeed) -> None:
    first, second = await join(hub, chat, Viewer()), await join(hub, chat, Viewer())
    assert hub.viewers.total(chat.session_id) == 2
    await hub.leave(first)
    assert list(feed.channels) == [chat.store.keys.session_channel(chat.session_id)]
    await hub.leave(second)
    await hub.leave(second)
    assert (feed.channels, dict(hub.rooms)) == ({}, {})


@pytest.mark.parametrize("seed", range(10))
async def test_tabs_that_come_while_others_go_all_hear_what_follows(
    hub: Hub, chat: Chat, seed: int
) -> None:
    dice = random.Random(seed)
    staying: list[Viewer] = []

    async def pause() -> None:
        for _ in range(dice.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)

    async def visit(place: int) -> None:
        await pause()
        viewer = Viewer()
        subscription = Subscription(viewer, chat.session_id)
        await hub.join(subscription)
        subscription.end_join(0)
        await pause()
        if place % 4:
            await hub.leave(subscription)
        else:
            staying.append(viewer)

    await asyncio.gather(*(visit(place) for place in range(20)))
    hub.publish_events("resp_" + chat.session_id[4:] + "A" * 11, 1, 1, [CREATED])
    assert [kinds(await viewer.sent()) for viewer in staying] == [["created"]] * 5
    await hub.viewers.announce(chat.session_id)
    assert hub.viewers.total(chat.session_id) == 5


async def test_a_session_that_is_gone_leaves_no_subscription_behind(
    hub: Hub, feed: SilentFeed
) -> None:
    subscription = Subscription(Viewer(), "ses_" + "A" * 22)
    with pytest.raises(SessionNotFound):
        await hub.join(subscription)
    await hub.leave(subscription)
    assert (feed.channels, dict(hub.rooms)) == ({}, {})


async def test_the_last_connection_of_a_user_unsubscribes_theirs(
    hub: Hub, store: SessionStore, feed: SilentFeed
) -> None:
    first, second = Viewer(), Viewer()
    await hub.add_watcher(first)
    await hub.add_watcher(second)
    assert list(feed.channels) == [store.keys.user_channel("alice")]
    await hub.remove_watcher(first)
    hub.broadcast(ConnectionDegraded(store="unavailable"))
    assert (await first.sent(), kinds(await second.sent())) == ([], ["connection.degraded"])
    await hub.remove_watcher(second)
    hub.broadcast(ConnectionDegraded(store="unavailable"))
    assert (feed.channels, await first.sent(), await second.sent()) == ({}, [], [])


async def test_a_connection_hears_its_user_though_the_one_before_it_could_not(
    hub: Hub, store: SessionStore, feed: SilentFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis confirms no subscription for a moment, in which two tabs of a user come."""

    async def subscribe(channel: str, callback: Any) -> None:
        monkeypatch.undo()
        await asyncio.sleep(0)
        raise StoreUnavailable

    monkeypatch.setattr(feed, "subscribe", subscribe)
    first, second = Viewer(), Viewer()
    adding = [hub.add_watcher(first), hub.add_watcher(second)]
    refused, accepted = await asyncio.gather(*adding, return_exceptions=True)
    assert isinstance(refused, StoreUnavailable) and accepted is None
    await hub.remove_watcher(first)
    assert list(feed.channels) == [store.keys.user_channel("alice")]
    await hub.remove_watcher(second)
    hub.broadcast(ConnectionDegraded(store="unavailable"))
    assert (feed.channels, await first.sent(), await second.sent()) == ({}, [], [])
