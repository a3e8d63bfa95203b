"""The notice to all users: one at a time, gone when it says."""

from __future__ import annotations

import asyncio

from sessions.connection.feed import LiveFeed
from sessions.directory.notices import ANNOUNCEMENT, Notices
from sessions.model.events import LiveFrame, LivePayload
from sessions.store.store import SessionStore


async def test_one_takes_the_place_of_another_and_every_worker_is_told(
    store: SessionStore,
) -> None:
    feed, heard = LiveFeed(store.client, store.keys), asyncio.Queue[LivePayload]()
    await feed.start()
    await feed.subscribe(store.keys.system_channel, heard.put_nowait)
    notices = Notices(store.client, store.keys)
    assert await notices.current() is None
    first = await notices.put("info", "soon", 60, "admin")
    assert await notices.current() == first and first.until - first.created_at == 60_000
    second = await notices.put("warning", "now", 60, "admin")
    assert await notices.current() == second and second.id != first.id
    assert await notices.remove() and not await notices.remove()
    for _ in range(4):
        assert await heard.get() == LiveFrame(ANNOUNCEMENT)
    await feed.close()


async def test_it_goes_by_itself_when_its_time_is_over(store: SessionStore) -> None:
    notices = Notices(store.client, store.keys)
    await notices.put("info", "soon", 7, "admin")
    assert 5000 < await store.client.call("PTTL", store.keys.notice) <= 7000


async def test_clients_are_not_told_by_whom(store: SessionStore) -> None:
    notice = await Notices(store.client, store.keys).put("info", "soon", 7, "admin")
    assert "by" not in notice.wire()
