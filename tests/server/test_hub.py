"""`Hub`: every viewer gets every event once and in order, whichever way it comes and how often."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.hub import Hub
from server.response_log import ResponseLog
from server.subscription import Subscription
from sessions.errors import ResponseNotFound, SessionNotFound
from sessions.follow import LiveFeed
from sessions.records import (
    Event,
    LiveFrame,
    LiveResponseEvents,
    LiveSessionEvents,
    ObjectEvent,
    TextEvent,
)
from sessions.store import SessionStore
from tests.server.watching import SilentFeed, Viewer
from tests.sessions.chat import Chat

CREATED = ObjectEvent({"type": "response.created"})
DONE = ObjectEvent({"type": "response.done", "response": {"text_length": 14}})


def texts(*parts: str) -> list[Event]:
    """Text events at their offsets."""
    events: list[Event] = []
    length = 0
    for part in parts:
        events.append(TextEvent(length, part))
        length += len(part)
    return events


LOG = [CREATED, *texts("one ", "two ", "three ")]
RESPONSE = "resp_" + "A" * 33


@pytest.fixture
def feed() -> SilentFeed:
    return SilentFeed()


@pytest.fixture
async def hub(store: SessionStore, feed: SilentFeed) -> Any:
    hub = Hub(store, cast("LiveFeed", feed), store.keys, "w1")
    yield hub
    await hub.close()


async def join(hub: Hub, chat: Chat, viewer: Viewer) -> Subscription:
    """A subscription that has its snapshot."""
    subscription = Subscription(viewer, chat.session_id)
    await hub.join(subscription)
    session = await chat.store.session(chat.uid, chat.session_id)
    subscription.end_join(session.offset)
    return subscription


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [
        frame["type"].removeprefix("response.").removeprefix("output_text.") for frame in frames
    ]


# ---- one subscription ---------------------------------------------------------------------------


async def test_events_that_were_sent_already_are_dropped() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:3])
    assert subscription.put_events(RESPONSE, 1, 2, LOG[1:3])
    frames = await viewer.sent()
    assert kinds(frames) == ["created", "delta"]
    assert (frames[1]["delta"], frames[1]["sequence_number"]) == ("one two ", 3)


async def test_events_behind_a_gap_are_not_sent() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    assert subscription.put_events(RESPONSE, 1, 1, LOG[:1])
    assert not subscription.put_events(RESPONSE, 1, 3, LOG[2:])
    assert kinds(await viewer.sent()) == ["created"]
    assert subscription.put_events(RESPONSE, 1, 2, LOG[1:])
    assert kinds(await viewer.sent()) == ["delta"]


async def test_session_events_come_once_and_only_forwards() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    for offset in (3, 4, 5, 5, 6, 5):
        subscription.put_session_event(offset, {"type": "session.updated", "offset": offset})
    assert [frame["offset"] for frame in await viewer.sent()] == [5, 6]


async def test_session_events_wait_for_the_snapshot_and_those_in_it_are_dropped() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    for offset in (5, 6, 7):
        subscription.put_session_event(offset, {"type": "session.updated", "offset": offset})
    assert await viewer.sent() == []
    subscription.end_join(6)
    assert [frame["offset"] for frame in await viewer.sent()] == [7]


async def test_a_resumed_answer_alone_brings_no_session_events() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses", only={RESPONSE})
    subscription.end_join(0)
    subscription.put_session_event(5, {"type": "session.updated"})
    assert await viewer.sent() == []
    assert subscription.wants(RESPONSE)
    assert not subscription.wants("resp_" + "B" * 33)


async def test_a_known_position_is_answered_with_what_comes_behind_it() -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, LOG), 2)
    (delta,) = await viewer.sent()
    assert (delta["first_sequence_number"], delta["sequence_number"]) == (3, 4)
    assert (delta["text_offset"], delta["delta"]) == (4, "two three ")


@pytest.mark.parametrize("position", [0, 5, 10**6])
async def test_any_other_position_is_answered_with_a_snapshot(position: int) -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(2, LOG), position)
    (snapshot,) = await viewer.sent()
    assert snapshot["type"] == "response.output_text.snapshot"
    assert (snapshot["sequence_number"], snapshot["fence"]) == (4, 2)
    assert snapshot["text"] == "one two three "


async def test_a_long_replay_becomes_a_snapshot_in_parts() -> None:
    viewer = Viewer()
    long = [CREATED, *texts(*["x" * 40_000] * 4)]
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, long), 1)
    parts = await viewer.sent()
    assert [(part["part"], part["parts"]) for part in parts] == [(1, 2), (2, 2)]
    assert "".join(part["text"] for part in parts) == "x" * 160_000


async def test_an_ended_answer_is_a_snapshot_and_its_end() -> None:
    viewer = Viewer()
    Subscription(viewer, "ses").put_log(RESPONSE, ResponseLog(1, [*LOG, DONE]), 0)
    snapshot, done = await viewer.sent()
    assert (snapshot["sequence_number"], done["sequence_number"]) == (4, 5)
    assert done["type"] == "response.done"


async def test_a_frozen_answer_sends_nothing_and_says_when_its_end_has_come() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    ended = subscription.freeze(RESPONSE)
    subscription.put_events(RESPONSE, 1, 3, [*LOG[2:], DONE])
    assert ended.is_set()
    assert kinds(await viewer.sent()) == ["created", "delta"]
    subscription.put_end(RESPONSE, ResponseLog(1, [*LOG, DONE]))
    (done,) = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "one two three "


async def test_a_frozen_answer_whose_text_is_known_ends_with_the_text_that_was_left_out() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    subscription.freeze(RESPONSE, lambda: "all of it")
    subscription.put_log(RESPONSE, ResponseLog(1, LOG[:3]), 0)
    subscription.put_events(RESPONSE, 1, 4, [*LOG[3:], DONE])
    *_, done = await viewer.sent()
    assert kinds([done]) == ["done"] and done["text"] == "all of it"
    subscription.thaw(RESPONSE)
    subscription.put_log(RESPONSE, ResponseLog(1, [*LOG, DONE]), 0)
    assert kinds(await viewer.sent()) == ["snapshot", "done"]  # asked for again


def message_updated(offset: int, status: str = "completed") -> dict[str, Any]:
    message = {"response_id": RESPONSE, "status": status}
    return {"type": "message.updated", "message": message, "offset": offset}


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_what_ends_a_message_waits_for_the_end_of_its_answer(is_frozen: bool) -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    if is_frozen:
        subscription.freeze(RESPONSE)
    subscription.put_session_event(5, message_updated(5, "in_progress"))
    subscription.put_session_event(6, message_updated(6))
    subscription.put_session_event(7, {"type": "session.updated"})
    assert subscription.awaited == RESPONSE
    assert sorted(kinds(await viewer.sent())) == ["created", "delta", "message.updated"]
    if is_frozen:
        subscription.put_end(RESPONSE, ResponseLog(1, [*LOG[:2], DONE]))
    else:
        subscription.put_events(RESPONSE, 1, 3, [DONE])
    assert kinds(await viewer.sent()) == ["done", "message.updated", "session.updated"]


async def test_a_message_whose_answer_did_not_begin_here_waits_for_nothing() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.end_join(4)
    subscription.put_session_event(5, message_updated(5))
    assert kinds(await viewer.sent()) == ["message.updated"]


async def test_the_end_of_a_deleted_answer_is_told_as_it_came_by() -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, "ses")
    subscription.put_events(RESPONSE, 1, 1, LOG[:2])
    subscription.freeze(RESPONSE)
    assert not await subscription.put_heard_end(RESPONSE, 0.01)
    subscription.put_events(RESPONSE, 1, 3, [*LOG[2:], DONE])
    assert await subscription.put_heard_end(RESPONSE, 1.0)
    *_, done = await viewer.sent()
    assert (done["type"], done["sequence_number"]) == ("response.done", 5)


# ---- the hub ------------------------------------------------------------------------------------


def updated(hub: Hub, chat: Chat, offset: int) -> None:
    hub.publish_session(chat.session_id, offset, {"type": "message.created", "n": offset})


async def test_session_events_in_the_wrong_order_are_sent_in_the_right_one(
    hub: Hub, chat: Chat
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    first = subscription.offset + 1
    for offset in (first + 2, first + 1, first, first + 1, first + 3):
        updated(hub, chat, offset)
    frames = await viewer.sent()
    assert [frame["offset"] for frame in frames] == [first, first + 1, first + 2, first + 3]
    assert {frame["session_id"] for frame in frames} == {chat.session_id}


async def test_a_session_event_that_did_not_come_is_read_from_the_log(hub: Hub, chat: Chat) -> None:
    viewer = Viewer()
    await join(hub, chat, viewer)
    begun = await chat.begin()  # two events, of which the hub hears only the second
    updated(hub, chat, begun.offset)
    frames = [await viewer.next(), await viewer.next()]
    assert [frame["offset"] for frame in frames] == [begun.offset - 1, begun.offset]
    assert frames[0]["message"]["role"] == "user"


async def test_the_same_event_from_memory_and_from_redis_is_sent_once(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    session = await chat.store.session(chat.uid, chat.session_id)
    offset = subscription.offset + 1
    payload = LiveSessionEvents(
        chat.session_id, session.epoch, offset, ({"type": "message.created", "n": offset},)
    )
    channel = chat.store.keys.session_channel(chat.session_id)
    updated(hub, chat, offset)
    feed.deliver(channel, payload)
    feed.deliver(channel, payload)
    assert [frame["offset"] for frame in await viewer.sent()] == [offset]


async def test_a_gap_in_an_answer_is_filled_from_its_log(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    viewer = Viewer()
    await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "one ", "two ", "three ")
    last = LiveResponseEvents(rid, 1, 4, 4, (TextEvent(8, "three "),))
    feed.deliver(chat.store.keys.session_channel(chat.session_id), last)
    frames = [await viewer.next(), await viewer.next()]
    assert kinds(frames) == ["created", "delta"]
    assert frames[1]["delta"] == "one two three "


async def test_a_missing_end_is_fetched_before_the_message_that_it_ends(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    """The feed brought the session's event, and lost the answer's."""
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    begun = await chat.begin()
    rid = begun.response_id
    subscription.put_events(rid, 1, 1, [CREATED])
    await chat.append(rid, 2, "one ")
    finished = await chat.finish(rid, 3)
    for offset in range(subscription.offset + 1, finished.offset):
        updated(hub, chat, offset)
    frame = {"type": "message.updated", "message": {"response_id": rid, "status": "completed"}}
    hub.publish_session(chat.session_id, finished.offset, frame)
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["type"] != "message.updated":
        frames.append(await viewer.next())
    assert [kind for kind in kinds(frames) if not kind.startswith("message.created")] == [
        "created",
        "delta",
        "done",
        "message.updated",
    ]


async def test_an_end_is_not_given_up_where_a_state_that_brings_it_is_on_its_way(
    hub: Hub, chat: Chat
) -> None:
    subscription = await join(hub, chat, Viewer())
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED])
    await chat.finish(rid, 2)
    subscription.begin_join()  # the session has another epoch, say
    await hub._sync_response(hub.rooms[chat.session_id], rid)
    assert subscription.open == [rid]  # that is what the state will bring the ends of
    assert not subscription.has_told_end(rid)


async def test_an_answer_that_was_lost_goes_on_from_its_log_alone(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    """The next owner numbers other text: what it publishes must not join what memory had shown."""
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED, *texts("one ", "two ")])  # `two` is not stored
    await chat.append(rid, 2, "one ")
    await chat.store.reap(rid, new_owner="w2", exited_owner="w1")
    assert kinds(await viewer.sent()) == ["created", "delta"]
    hub.disown(rid)
    channel = chat.store.keys.session_channel(chat.session_id)
    feed.deliver(channel, LiveResponseEvents(rid, 2, 4, 4, (TextEvent(13, "joins by number"),)))
    frame = await viewer.next()
    while frame["type"].startswith("message."):
        frame = await viewer.next()
    assert (frame["type"], frame["text"]) == ("response.output_text.snapshot", "one ")
    assert frame["fence"] == 2


async def test_a_message_whose_end_is_gone_does_not_wait_for_ever(hub: Hub, chat: Chat) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    begun = await chat.begin()
    offset = subscription.offset + 1
    subscription.put_events(RESPONSE, 1, 1, [CREATED])
    hub.publish_session(chat.session_id, offset, message_updated(offset))
    while (await viewer.next())["type"] != "message.updated":
        pass
    assert begun.offset == offset + 1


async def test_what_is_asked_for_while_a_log_is_read_is_read_again(
    hub: Hub, chat: Chat, feed: SilentFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log as it was read may be older than what showed that something is missing."""
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED])
    await chat.append(rid, 2, "one ", "two ")
    read, channel = chat.store.events, chat.store.keys.session_channel(chat.session_id)

    async def read_too_early(response_id: str, **arguments: Any) -> Any:
        events = await read(response_id, **arguments)
        monkeypatch.undo()
        await chat.append(rid, 4, "three ")
        feed.deliver(channel, LiveResponseEvents(rid, 1, 4, 4, (TextEvent(8, "three "),)))
        return events[:1]

    monkeypatch.setattr(chat.store, "events", read_too_early)
    feed.deliver(channel, LiveResponseEvents(rid, 1, 3, 3, (TextEvent(4, "two "),)))
    text = ""
    while text != "one two three ":
        text += (await viewer.next()).get("delta", "")


async def test_a_feed_that_was_away_costs_no_event(hub: Hub, chat: Chat, feed: SilentFeed) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    begun = await chat.begin()
    rid = begun.response_id
    subscription.put_events(rid, 1, 1, [CREATED])
    await chat.append(rid, 2, "one ")
    feed.resync()
    frames = [await viewer.next() for _ in range(4)]
    assert sorted(kinds(frames)) == ["created", "delta", "message.created", "message.created"]


async def test_answers_of_this_worker_are_heard_from_memory_alone(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED])
    hub.local_runs[rid] = cast("Any", None)
    hub.claimed.add(rid)
    echo = LiveResponseEvents(rid, 1, 2, 2, (TextEvent(0, "echo"),))
    feed.deliver(chat.store.keys.session_channel(chat.session_id), echo)
    assert kinds(await viewer.sent()) == ["created"]
    hub.publish_events(rid, 1, 2, [TextEvent(0, "one ")])
    assert [frame["delta"] for frame in await viewer.sent()] == ["one "]


async def test_an_answer_is_attached_from_the_log(hub: Hub, chat: Chat) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "one ", "two ")
    await hub.attach(subscription, rid, 2)
    assert [frame["delta"] for frame in await viewer.sent()] == ["two "]
    await hub.attach(subscription, rid, 99)
    assert kinds(await viewer.sent()) == ["snapshot"]


async def test_a_position_under_a_fence_that_ended_meanwhile_is_answered_with_a_snapshot(
    hub: Hub, chat: Chat
) -> None:
    """Its owner may have shown an entry 3 that was never stored; the next owner's is another."""
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "one ", "two ")
    put = await hub.prepare(subscription, rid, 3, 1)
    texts = (TextEvent(0, "one "), TextEvent(4, "other "), TextEvent(10, "three "))
    entries: list[Event] = [CREATED, *texts]
    run = SimpleNamespace(log=ResponseLog(2, entries), must_be_silent=lambda: False)
    hub.local_runs[rid] = cast("Any", run)
    put()
    (snapshot,) = await viewer.sent()
    assert (snapshot["fence"], snapshot["text"]) == (2, "one other three ")


async def test_an_answer_of_somebody_else_cannot_be_attached(hub: Hub, chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    for wrong in (rid, RESPONSE, "*"):
        with pytest.raises(ResponseNotFound):
            await hub.attach(Subscription(Viewer("mallory"), chat.session_id), wrong)


async def test_frames_for_the_sidebar_go_to_those_who_do_not_watch(hub: Hub, chat: Chat) -> None:
    watching, other, asker, stranger = Viewer(), Viewer(), Viewer(), Viewer("bob")
    for viewer in (watching, other, asker, stranger):
        await hub.add_watcher(viewer)
    await join(hub, chat, watching)
    frame = {"type": "session.updated", "session_id": chat.session_id}
    await hub.tell_user("alice", chat.session_id, frame, besides=asker)
    counts = [len(await viewer.sent()) for viewer in (watching, other, asker, stranger)]
    assert counts == [0, 1, 0, 0]
    activity = {"type": "session.activity", "session_id": chat.session_id}
    await hub.tell_user("alice", chat.session_id, activity)
    counts = [len(await viewer.sent()) for viewer in (watching, other, asker, stranger)]
    assert counts == [1, 1, 1, 0]


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
    assert (feed.channels, hub.rooms) == ({}, {})


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
    assert (feed.channels, hub.rooms) == ({}, {})


async def test_the_last_connection_of_a_user_unsubscribes_theirs(
    hub: Hub, store: SessionStore, feed: SilentFeed
) -> None:
    first, second = Viewer(), Viewer()
    await hub.add_watcher(first)
    await hub.add_watcher(second)
    assert list(feed.channels) == [store.keys.user_channel("alice")]
    await hub.remove_watcher(first)
    hub.broadcast({"type": "connection.degraded"})
    assert (await first.sent(), kinds(await second.sent())) == ([], ["connection.degraded"])
    await hub.remove_watcher(second)
    assert (feed.channels, hub.watchers) == ({}, {})
