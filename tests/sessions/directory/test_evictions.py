"""Evictions: viewers hear of it in the session's log, a locked session takes no answer."""

from __future__ import annotations

import asyncio

import pytest

from sessions.connection.feed import LiveFeed
from sessions.directory.evictions import Evictions
from sessions.model.errors import SessionLocked, SessionNotFound
from sessions.model.events import LivePayload, LiveSessionEvents
from sessions.model.ids import new_session_id
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat, is_creation


@pytest.fixture
def evictions(store: SessionStore) -> Evictions:
    return Evictions(store.client, store.keys)


async def test_an_eviction_is_a_numbered_event_that_every_worker_hears(
    chat: Chat, store: SessionStore, evictions: Evictions
) -> None:
    heard = asyncio.Queue[LivePayload]()
    async with LiveFeed(store.client, store.keys) as feed:
        await feed.subscribe(store.keys.session_channel(chat.session_id), heard.put_nowait)
        await evictions.evict(chat.session_id, "spam")
        while is_creation(payload := await heard.get()):
            pass
    event = {"type": "session.evicted", "by": "admin", "reason": "spam"}
    assert isinstance(payload, LiveSessionEvents) and payload.events == (event,)
    assert payload.offset == 2
    stored = await store.sessions.events(chat.session_id, after=1)
    assert stored is not None and [one.data for one in stored] == [event]


@pytest.mark.row("B36")
async def test_a_locked_session_takes_no_answer_until_it_is_unlocked(
    chat: Chat, store: SessionStore, evictions: Evictions
) -> None:
    await evictions.lock(chat.session_id, "- under review")
    with pytest.raises(SessionLocked) as raised:
        await chat.begin()
    assert raised.value.reason == "- under review"
    assert (await store.sessions.get("alice", chat.session_id)).locked
    assert await store.sessions.events(chat.session_id, after=1) == []
    await evictions.unlock(chat.session_id)
    await chat.begin()


async def test_an_unknown_session_is_not_found(evictions: Evictions) -> None:
    for session_id in (new_session_id(), "*", "ses_x"):
        with pytest.raises(SessionNotFound):
            await evictions.evict(session_id, "spam")
