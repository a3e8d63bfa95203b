"""`CatchUp`: who lacks something of a log gets that, and nothing that is not stored."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.live.hub import Hub
from server.live.response_log import ResponseLog
from server.live.subscription import Subscription
from sessions.model.errors import ResponseNotFound
from sessions.model.events import Event, LiveResponseEvents, TextEvent
from tests.server.helpers.entries import CREATED, DONE, MESSAGE, RESPONSE, texts
from tests.server.helpers.watching import SilentFeed, Viewer, join, kinds, publish
from tests.sessions.helpers.chat import Chat


async def test_an_answer_is_attached_from_the_log(hub: Hub, chat: Chat) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "one ", "two ")
    await hub.catch_up.attach(subscription, rid, 2)
    assert [frame["delta"] for frame in await viewer.sent()] == ["two "]
    await hub.catch_up.attach(subscription, rid, 99)
    assert kinds(await viewer.sent()) == ["snapshot"]


async def test_a_position_under_a_fence_that_ended_meanwhile_is_answered_with_a_snapshot(
    hub: Hub, chat: Chat
) -> None:
    """Its owner may have shown an entry 3 that was never stored; the next owner's is another."""
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "one ", "two ")
    put = await hub.catch_up.prepare(subscription, rid, 3, 1)
    texts = (TextEvent(0, "one "), TextEvent(4, "other "), TextEvent(10, "three "))
    entries: list[Event] = [CREATED, *texts]
    run = SimpleNamespace(log=ResponseLog(2, entries), must_be_silent=lambda: False)
    hub.rooms.add_run(rid, cast("Any", run))
    put()
    (snapshot,) = await viewer.sent()
    assert (snapshot["fence"], snapshot["text"]) == (2, "one other three ")


async def test_an_answer_of_somebody_else_cannot_be_attached(hub: Hub, chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    for wrong in (rid, RESPONSE, "*"):
        with pytest.raises(ResponseNotFound):
            await hub.catch_up.attach(Subscription(Viewer("mallory"), chat.session_id), wrong)


async def test_a_session_event_that_did_not_come_is_read_from_the_log(hub: Hub, chat: Chat) -> None:
    viewer = Viewer()
    await join(hub, chat, viewer)
    begun = await chat.begin()  # two events, of which the hub hears only the second
    publish(hub, chat, begun.offset)
    frames = [await viewer.next(), await viewer.next()]
    assert [frame["offset"] for frame in frames] == [begun.offset - 1, begun.offset]
    assert frames[0]["message"]["role"] == "user"


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


async def test_an_end_that_is_fetched_for_who_stopped_the_answer_brings_the_text(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    """The session may be deleted before anybody asks for the text that was not sent."""
    viewer = Viewer()
    await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    viewer.sent_ends.stop(rid)
    await chat.append(rid, 2, "one ", "two ", "three ")
    await chat.finish(rid, 5, events=[DONE])
    feed.deliver(
        chat.store.keys.session_channel(chat.session_id), LiveResponseEvents(rid, 1, 5, 5, (DONE,))
    )
    end = await viewer.next()
    assert (end["type"], end["text"]) == ("response.done", "one two three ")


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
        publish(hub, chat, offset)
    publish(hub, chat, finished.offset, replace(MESSAGE, response_id=rid, status="completed"))
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
    await hub.catch_up._sync_response(hub.rooms[chat.session_id], rid)
    assert subscription.open == [rid]  # that is what the state will bring the ends of
    assert not subscription.sent_ends.has_end(rid)


async def test_an_answer_that_was_lost_goes_on_from_its_log_alone(
    hub: Hub, chat: Chat, feed: SilentFeed
) -> None:
    """The next owner numbers other text: what it publishes must not join what memory had shown."""
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED, *texts("one ", "two ")])  # `two` is not stored
    await chat.append(rid, 2, "one ")
    await chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
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
    publish(hub, chat, offset, replace(MESSAGE, status="completed"))
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
    read, channel = chat.store.runs.events, chat.store.keys.session_channel(chat.session_id)

    async def read_too_early(response_id: str, **arguments: Any) -> Any:
        events = await read(response_id, **arguments)
        monkeypatch.undo()
        await chat.append(rid, 4, "three ")
        feed.deliver(channel, LiveResponseEvents(rid, 1, 4, 4, (TextEvent(8, "three "),)))
        return events[:1]

    monkeypatch.setattr(chat.store.runs, "events", read_too_early)
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


async def test_an_answer_that_is_lost_while_a_state_is_read_is_sent_as_it_is_stored(
    hub: Hub, chat: Chat
) -> None:
    viewer = Viewer()
    subscription = Subscription(viewer, chat.session_id)
    await hub.join(subscription)
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "one ")
    log = ResponseLog(1, [CREATED, *texts("one ", "two ")])  # `two` is not stored
    run = SimpleNamespace(log=log, must_be_silent=lambda: False, is_disowned=False)
    hub.rooms.add_run(rid, cast("Any", run))
    put = await hub.catch_up.prepare(subscription, rid, 0)
    await chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
    run.is_disowned = True
    hub.disown(rid)
    put()
    subscription.end_join(0)
    frame = await viewer.next()
    while frame["type"] != "response.output_text.snapshot":
        frame = await viewer.next()
    assert (frame["text"], frame["fence"]) == ("one ", 2)


async def test_an_end_that_comes_while_a_lost_answer_is_read_reaches_who_follows_it_alone(
    hub: Hub, chat: Chat, feed: SilentFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = (await chat.begin()).response_id
    viewer = Viewer()
    subscription = Subscription(viewer, chat.session_id, only={rid})
    await hub.join(subscription)
    subscription.end_join(0)
    subscription.put_events(rid, 1, 1, [CREATED, *texts("one ", "two ")])  # `two` is not stored
    await chat.append(rid, 2, "one ")
    await chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
    read, channel = chat.store.runs.get, chat.store.keys.session_channel(chat.session_id)

    async def read_when_it_has_ended(*arguments: Any) -> Any:
        monkeypatch.undo()
        await chat.finish(rid, 3, fence=2)
        feed.deliver(channel, LiveResponseEvents(rid, 2, 3, 3, (DONE,)))
        return await read(*arguments)

    monkeypatch.setattr(chat.store.runs, "get", read_when_it_has_ended)
    assert kinds(await viewer.sent()) == ["created", "delta"]
    hub.disown(rid)
    frames = [await viewer.next(), await viewer.next()]
    assert kinds(frames) == ["snapshot", "done"]


async def test_who_comes_while_a_lost_answer_is_read_is_sent_its_end_once(
    hub: Hub, chat: Chat
) -> None:
    shown, newcomer = Viewer(), Viewer()
    subscription = await join(hub, chat, shown)
    rid = (await chat.begin()).response_id
    subscription.put_events(rid, 1, 1, [CREATED, *texts("one ", "two ")])  # `two` is not stored
    await chat.append(rid, 2, "one ")
    await chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
    await chat.finish(rid, 3, fence=2)
    joined = Subscription(newcomer, chat.session_id)
    await hub.join(joined)
    put = await hub.catch_up.prepare(joined, rid, 0)
    hub.disown(rid)
    put()
    joined.end_join(0)
    while (await shown.next())["type"] != "response.done":
        pass
    frames = [frame for frame in await newcomer.sent() if frame["type"].startswith("response.")]
    assert kinds(frames) == ["snapshot", "done"]
