"""Sessions that expire: use renews them, a running answer keeps them, and all keys go or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import SessionNotFound
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.sessions.helpers.chat import Chat

IDLE_MS = 60_000


@pytest.fixture
async def idle_store(redis_server: EmbeddedRedis, prefix: str) -> AsyncIterator[SessionStore]:
    """A store whose sessions go after a minute."""
    store = await SessionStore.open(redis_server.url, prefix=prefix, idle_seconds=IDLE_MS / 1000)
    yield store
    await store.close()


@pytest.fixture
async def chat(idle_store: SessionStore) -> Chat:
    return await Chat.create(idle_store)


async def lives(chat: Chat) -> dict[str, int]:
    """Each of the session's own keys → its life in ms, -1 for ever."""
    base = chat.store.keys.session_base(chat.session_id)
    others = ("log", "x", "v")
    names = [name for name in await chat.keys() if ":" not in name and name not in others]
    found = await chat.store.client.calls(*(("PTTL", base + name) for name in names))
    return dict(zip(names, found, strict=True))


async def age(chat: Chat) -> None:
    """Let the session look as if it was not used for a while."""
    base = chat.store.keys.session_base(chat.session_id)
    for name, life in (await lives(chat)).items():
        if life >= 0:
            await chat.store.client.call("PEXPIRE", base + name, 5000)


def assert_fresh(found: dict[str, int]) -> None:
    assert IDLE_MS - 5000 < found.pop("m") <= IDLE_MS
    assert all(IDLE_MS - 4000 < life <= IDLE_MS + 1000 for life in found.values()), found


async def test_a_new_session_expires(chat: Chat) -> None:
    assert_fresh(await lives(chat))


@pytest.mark.row("C15")
async def test_an_answer_that_is_being_written_keeps_every_key(chat: Chat) -> None:
    begun = await chat.begin("hello")
    queued = await chat.begin("next", on_busy="queue")
    assert set((await lives(chat)).values()) == {-1}
    await chat.finish(begun.response_id, 2)
    assert set((await lives(chat)).values()) == {-1}  # the next one's turn
    await chat.finish(queued.response_id, 2)
    assert_fresh(await lives(chat))


@pytest.mark.row("C15")
async def test_use_of_a_session_renews_every_key(chat: Chat) -> None:
    begun = await chat.begin("hello")
    await chat.finish(begun.response_id, 2)
    store = chat.store
    page = await store.messages.path("alice", chat.session_id)

    async def share() -> None:
        await store.shares.create("alice", chat.session_id, "t", page.messages)

    async def rename() -> None:
        await store.sessions.update("alice", chat.session_id, title="new")

    async def read() -> None:
        await store.messages.path("alice", chat.session_id)

    async def watch() -> None:
        await store.viewers.set(chat.session_id, "w1", 1)

    for use in (share, rename, read, watch):
        await age(chat)
        await use()
        assert_fresh(await lives(chat))


@pytest.mark.row("C15")
async def test_leaving_a_session_renews_nothing(chat: Chat) -> None:
    await age(chat)
    await chat.store.viewers.set(chat.session_id, "w1", 0)
    assert (await lives(chat))["m"] <= 5000


@pytest.mark.row("C15")
async def test_watching_an_answer_that_is_being_written_lets_nothing_expire(
    chat: Chat,
) -> None:
    await chat.begin("hello")
    await chat.store.viewers.set(chat.session_id, "w1", 1)
    assert set((await lives(chat)).values()) == {-1}


@pytest.mark.row("C15")
async def test_a_session_that_expires_goes_with_all_its_keys(
    redis_server: EmbeddedRedis, prefix: str
) -> None:
    store = await SessionStore.open(redis_server.url, prefix=prefix, idle_seconds=0.05)
    chat = await Chat.create(store)
    begun = await chat.begin("hello", idempotency_key="k")
    await chat.finish(begun.response_id, 2)
    async with asyncio.timeout(PATIENCE):
        while set(await chat.keys()) - {"i:k"}:
            pass  # a key that is not read goes when Redis likes
    with pytest.raises(SessionNotFound):
        await store.sessions.get("alice", chat.session_id)
    await store.close()


async def test_a_session_that_has_expired_begins_anew_under_its_key(
    redis_server: EmbeddedRedis, prefix: str
) -> None:
    store = await SessionStore.open(redis_server.url, prefix=prefix, idle_seconds=60)
    created = await store.sessions.create("alice", idempotency_key="k")
    chat = Chat(store, created.session.id)
    begun = await chat.begin("hello")
    await chat.finish(begun.response_id, 2)
    await store.client.call("DEL", store.keys.session(chat.session_id, "m"))  # the first to go
    again = await store.sessions.create("alice", idempotency_key="k")
    assert not again.replayed and again.session.message_count == 0
    assert (await store.messages.path("alice", again.session.id)).messages == ()
    await store.close()


async def test_sessions_stay_once_expiry_is_switched_off(chat: Chat, store: SessionStore) -> None:
    begun = await chat.on(store).begin("hello")
    await chat.on(store).finish(begun.response_id, 2)
    assert set((await lives(chat)).values()) == {-1}
