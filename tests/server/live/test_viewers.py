"""`Viewers` and `Abandonment`: who watches, on all workers together, and what follows from it."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from server.live import viewers as viewers_module
from server.live.hub import Hub
from server.live.subscription import Subscription
from server.runs import abandonment as abandonment_module
from server.runs.abandonment import Abandonment
from server.runs.run import Run
from server.runs.runs import Runs
from server.runs.stop import Stop
from sessions.connection.feed import LiveFeed
from sessions.model.events import ObjectEvent
from sessions.model.ids import new_response_id
from sessions.store.store import SessionStore
from sessions.store.viewers import VIEWERS_MS
from tests.server.helpers.watching import Viewer
from tests.sessions.helpers.chat import Chat, assistant_message


@pytest.fixture
async def hubs(store: SessionStore) -> AsyncIterator[tuple[Hub, Hub]]:
    """Two workers on one Redis."""
    async with LiveFeed(store.client, store.keys) as one, LiveFeed(store.client, store.keys) as two:
        pair = Hub(store, one, store.keys, "w1"), Hub(store, two, store.keys, "w2")
        yield pair
        for hub in pair:
            await hub.close()


async def join(hub: Hub, chat: Chat, **options: Any) -> Subscription:
    subscription = Subscription(Viewer(), chat.session_id, **options)
    await hub.join(subscription)
    subscription.end_join(99)
    return subscription


async def leave(hub: Hub, subscription: Subscription) -> None:
    """Return when the store knows."""
    await hub.leave(subscription)
    await hub.viewers.announce(subscription.session_id)


async def heard(subscription: Subscription) -> int:
    """The number in the next `viewer.changed`."""
    frame = await cast("Viewer", subscription.watcher).next()
    assert frame["type"] == "viewer.changed"
    assert frame["session_id"] == subscription.session_id
    number: int = frame["viewers"]
    return number


async def test_viewers_are_counted_over_all_workers(hubs: tuple[Hub, Hub], chat: Chat) -> None:
    first = await join(hubs[0], chat)
    assert hubs[0].viewers.total(chat.session_id) == 1
    second = await join(hubs[1], chat)
    assert hubs[1].viewers.total(chat.session_id) == 2
    assert await heard(first) == 2
    await hubs[1].leave(second)
    assert await heard(first) == 1
    assert await chat.store.viewers.count(chat.session_id) == 1
    await leave(hubs[0], first)
    assert await chat.store.viewers.count(chat.session_id) == 0


async def test_a_connection_that_only_resumed_counts_but_hears_no_count(
    hubs: tuple[Hub, Hub], chat: Chat
) -> None:
    first = await join(hubs[0], chat)
    resumed = await join(hubs[0], chat, only=set())
    assert hubs[0].viewers.total(chat.session_id) == 2
    assert await heard(first) == 2
    assert await cast("Viewer", resumed.watcher).sent() == []


async def test_many_changes_are_sent_once_a_second(
    hubs: tuple[Hub, Hub], chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await join(hubs[0], chat)
    monkeypatch.setattr(viewers_module, "MIN_INTERVAL_SECONDS", 0.2)
    others = [await join(hubs[0], chat) for _ in range(20)]
    numbers = [await heard(first)]
    while numbers[-1] != 21:
        numbers.append(await heard(first))
    assert len(numbers) <= 3, numbers
    for other in others:
        await hubs[0].leave(other)
    while numbers[-1] != 1:
        numbers.append(await heard(first))
    assert len(numbers) <= 6, numbers


async def test_an_observer_counts_unless_observers_are_hidden(
    store: SessionStore, chat: Chat
) -> None:
    async with LiveFeed(store.client, store.keys) as feed:
        for hides, total in ((False, 2), (True, 1)):
            hub = Hub(store, feed, store.keys, "w1", hides_observers=hides)
            viewer, observer = await join(hub, chat), await join(hub, chat, observes=True)
            assert hub.viewers.total(chat.session_id) == total
            assert await store.viewers.count(chat.session_id) == total
            for subscription in (viewer, observer):
                await leave(hub, subscription)
            await hub.close()


async def test_the_count_of_a_worker_that_died_is_forgotten(chat: Chat) -> None:
    store = chat.store
    assert await store.viewers.set(chat.session_id, "dead", 3) == 3
    key = store.keys.session(chat.session_id, "v")
    count, counted_at = (await store.client.call("HGET", key, "dead")).decode().split()
    old = int(counted_at) - VIEWERS_MS - 1
    await store.client.call("HSET", key, "dead", f"{count} {old}")
    assert await store.viewers.set(chat.session_id, "w1", 1) == 1
    assert await store.client.call("HGET", key, "dead") is None


async def test_nothing_is_counted_for_a_session_that_is_gone(chat: Chat) -> None:
    await chat.store.viewers.set(chat.session_id, "w1", 1)
    await chat.store.sessions.delete("alice", chat.session_id)
    assert await chat.store.viewers.set(chat.session_id, "w1", 1) == 0
    assert "v" not in await chat.keys()


# ---- answers that nobody watches ----------------------------------------------------------------


class RunsOf:
    """`Runs` with one answer."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def all(self) -> list[Run]:
        return [self._run]

    def stop(self, run: Run, stop: Stop) -> None:
        run.stop(stop)


def running(chat: Chat, on_no_viewers: Any) -> Run:
    response_id = new_response_id(chat.session_id)
    response = {
        "id": response_id,
        "session_id": chat.session_id,
        "settings": {"on_no_viewers": on_no_viewers} if on_no_viewers else {},
    }
    message = assistant_message(response_id)
    return Run(response, message, uid="alice", fence=1, created=ObjectEvent({}))


@pytest.mark.parametrize("wish", ["continue", None])
async def test_an_answer_goes_on_without_viewers_unless_it_was_asked_to_stop(
    hubs: tuple[Hub, Hub], chat: Chat, wish: Any
) -> None:
    run = running(chat, wish)
    sweeper = Abandonment(chat.store, hubs[0], cast("Runs", RunsOf(run)))
    await sweeper.sweep()
    await sweeper.sweep()
    assert run.stopping is None


async def test_an_answer_stops_when_nobody_has_watched_it_on_any_worker_for_so_long(
    hubs: tuple[Hub, Hub], chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(abandonment_module, "monotonic", lambda: now)
    run = running(chat, {"stop_after_s": 30})
    sweeper = Abandonment(chat.store, hubs[0], cast("Runs", RunsOf(run)))
    await sweeper.sweep()
    now += 29
    elsewhere = await join(hubs[1], chat)
    await sweeper.sweep()  # somebody looked in, so the time starts over
    await leave(hubs[1], elsewhere)
    await sweeper.sweep()
    now += 29
    await sweeper.sweep()
    assert run.stopping is None
    now += 1
    await sweeper.sweep()
    assert run.stopping is not None
    assert (run.stopping.by, run.stopping.reason) == ("policy", "no_viewers")
