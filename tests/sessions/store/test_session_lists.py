"""A user's sessions: newest first, in pages, by title and pin; cursors are the user's own."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from sessions.model.errors import InvalidCursor
from sessions.model.ids import new_session_id
from sessions.store import session_lists as user_sessions
from sessions.store.session_lists import user_cursor
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat


async def test_sessions_are_listed_newest_updated_first(store: SessionStore) -> None:
    chats = [await Chat.create(store) for _ in range(3)]
    newest = (await store.lists.page("alice")).sessions[0].updated_at
    while (await store.sessions.get("alice", chats[0].session_id)).updated_at <= newest:
        await store.sessions.update("alice", chats[0].session_id, title="touched")
    page = await store.lists.page("alice")
    assert page.sessions[0].id == chats[0].session_id
    assert {session.id for session in page.sessions} == {chat.session_id for chat in chats}
    assert page.next_cursor is None
    assert (await store.lists.page("bob")).sessions == ()


async def test_pages_follow_each_other_without_hole_or_repeat(store: SessionStore) -> None:
    chats = [await Chat.create(store) for _ in range(7)]
    for chat in chats:  # many of one millisecond: pages must end between equals, too
        await store.client.call("HSET", store.keys.session(chat.session_id, "m"), "updated_at", 5)
        await store.client.call("ZADD", store.keys.user_sessions("alice"), 5, chat.session_id)
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        page = await store.lists.page("alice", limit=2, cursor=cursor)
        seen += [session.id for session in page.sessions]
        cursor = page.next_cursor
    assert cursor is None
    assert sorted(seen) == sorted(chat.session_id for chat in chats)


async def test_a_cursor_that_was_never_given_is_refused(store: SessionStore) -> None:
    for cursor in ("", "5", "x:ses_" + "a" * 22, "5:ses_{}", "-1:ses_" + "a" * 22):
        with pytest.raises(InvalidCursor):
            await store.lists.page("alice", cursor=cursor)


async def test_stale_index_entries_are_dropped_once_they_are_old(store: SessionStore) -> None:
    chat = await Chat.create(store)
    index = store.keys.user_sessions("alice")
    await store.client.call("ZADD", index, 5, new_session_id())
    page = await store.lists.page("alice")
    assert [session.id for session in page.sessions] == [chat.session_id]
    assert await store.client.call("ZCARD", index) == 1


async def test_a_cursor_of_somebody_else_is_refused(store: SessionStore) -> None:
    for _ in range(2):
        await Chat.create(store)
    cursor = (await store.lists.page("alice", limit=1)).next_cursor
    assert cursor is not None
    assert len((await store.lists.page("alice", cursor=cursor)).sessions) == 1
    with pytest.raises(InvalidCursor):
        await store.lists.page("bob", cursor=cursor)
    for place in ((-1, "x"), (5, "*"), (10**20, new_session_id())):
        with pytest.raises(InvalidCursor):
            await store.lists.page("alice", cursor=user_cursor("alice", place))


async def test_titles_pins_and_times_choose_sessions(store: SessionStore) -> None:
    for title in ("Straße nach Rom", "ROM und Athen", "Athen"):
        await store.sessions.create("alice", idempotency_key=secrets.token_hex(8), title=title)
    road = next(s for s in (await store.lists.page("alice")).sessions if "nach" in s.title)
    await store.sessions.update("alice", road.id, pinned=True)

    async def titles(**chosen: Any) -> set[str]:
        page = await store.lists.page("alice", **chosen)
        assert page.next_cursor is None
        return {session.title for session in page.sessions}

    assert await titles(title="rom") == {"Straße nach Rom", "ROM und Athen"}
    assert await titles(title="STRASSE") == {"Straße nach Rom"}
    assert await titles(pinned=True) == {"Straße nach Rom"}
    assert await titles(pinned=False) == {"ROM und Athen", "Athen"}
    newest = (await store.sessions.get("alice", road.id)).updated_at
    assert "Straße nach Rom" in await titles(updated_after=newest - 1)
    assert await titles(updated_after=newest) == set()


async def test_a_search_looks_at_so_many_sessions_and_goes_on(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_sessions, "MAX_SCANNED", 4)
    monkeypatch.setattr(user_sessions, "SCAN_CHUNK", 2)
    oldest = await store.sessions.create("alice", idempotency_key="k", title="sought")
    for _ in range(9):
        await Chat.create(store)
    found: list[str] = []
    cursor, num_pages = None, 0
    while num_pages == 0 or cursor is not None:
        page = await store.lists.page("alice", title="sought", cursor=cursor)
        found += [session.id for session in page.sessions]
        cursor = page.next_cursor
        num_pages += 1
    assert found == [oldest.session.id]
    assert num_pages == 3  # 4 + 4 + 2 sessions
