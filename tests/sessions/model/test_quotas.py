"""Quotas: one more than allowed is refused, whole; budgets count each response once."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.users import Users
from sessions.indexes.indexes import local_ms
from sessions.model.codec import size_of_body
from sessions.model.errors import QuotaExceeded
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.keys import INDEX_GRACE_MS
from sessions.model.quotas import Quotas
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat

pytestmark = pytest.mark.row("P19", "P20")


QUOTAS = Quotas(
    sessions_per_user=3, messages_per_session=4, bytes_per_session=8000, tokens_per_day=20
)


@pytest.fixture
async def small_store(redis_server: EmbeddedRedis, prefix: str) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(redis_server.url, prefix=prefix, quotas=QUOTAS)
    yield store
    await store.close()


async def make(store: SessionStore, uid: str = "alice", key: str = "") -> str:
    created = await store.sessions.create(uid, idempotency_key=key or secrets.token_hex(8))
    return created.session.id


async def test_one_session_more_is_refused(small_store: SessionStore) -> None:
    ids = [await make(small_store, key=f"k{n}") for n in range(3)]
    with pytest.raises(QuotaExceeded) as caught:
        await make(small_store)
    assert (caught.value.what, caught.value.limit) == ("sessions", 3)
    assert {s.id for s in (await small_store.lists.page("alice")).sessions} == set(ids)
    assert await make(small_store, key="k1") == ids[1]  # a repeat adds nothing
    await make(small_store, "bob")
    await small_store.sessions.delete("alice", ids[0])
    await make(small_store)


async def test_sessions_that_are_gone_do_not_count(small_store: SessionStore) -> None:
    store = small_store
    index = store.keys.user_sessions("alice")
    for _ in range(3):
        await store.client.call("ZADD", index, 5, new_session_id())
    await make(store)
    assert len((await store.lists.page("alice")).sessions) == 1
    assert INDEX_GRACE_MS > 1000  # a fresh entry counts: its session may be on its way


async def used(store: SessionStore) -> int | None:
    """Alice's tokens of today."""
    return (await store.budgets.usage(["alice"]))[0].tokens_today


async def test_messages_over_the_quota_are_refused_and_nothing_is_stored(
    small_store: SessionStore,
) -> None:
    chat = await Chat.create(small_store)
    for _ in range(2):
        begun = await chat.begin("hello")
        await chat.finish(begun.response_id, 2)
    before = await small_store.sessions.get("alice", chat.session_id)
    keys = await chat.keys()
    for on_busy in ("reject", "queue"):
        with pytest.raises(QuotaExceeded) as caught:
            await chat.begin("one more", idempotency_key=f"k-{on_busy}", on_busy=on_busy)
        assert (caught.value.what, caught.value.limit) == ("messages in a session", 4)
    assert await small_store.sessions.get("alice", chat.session_id) == before
    assert await chat.keys() == keys
    assert await small_store.runs.owned_by("w1") == []


async def test_bytes_over_the_quota_are_refused(small_store: SessionStore) -> None:
    chat = await Chat.create(small_store)
    with pytest.raises(QuotaExceeded) as caught:
        await chat.begin("a" * 12_000)
    assert (caught.value.what, caught.value.limit) == ("bytes in a session", 8000)
    assert (await small_store.sessions.get("alice", chat.session_id)).message_count == 0
    await chat.begin("short")


async def test_bytes_are_those_of_the_bodies_before_compression(store: SessionStore) -> None:
    chat = await Chat.create(store)
    begun = await chat.begin("hello " * 1000)
    message = replace(chat.messages[begun.response_id], text="whole " * 2000)
    await chat.finish(begun.response_id, 2, message=message)
    stored = await store.client.call("HVALS", store.keys.session(chat.session_id, "msg"))
    counted = await store.client.call("HGET", store.keys.session(chat.session_id, "m"), "bytes")
    assert int(counted) == sum(size_of_body(body) for body in stored) > 18_000


async def test_tokens_are_counted_when_a_response_ends(small_store: SessionStore) -> None:
    chat = await Chat.create(small_store)
    for _ in range(2):
        await small_store.budgets.check("alice")
        begun = await chat.begin("hello")
        await chat.finish(begun.response_id, 2, input_tokens=4, output_tokens=6)
    assert await used(small_store) == 20
    with pytest.raises(QuotaExceeded) as caught:
        await small_store.budgets.check("alice")
    assert caught.value.what == "tokens per day"
    assert caught.value.retry_after_ms is not None
    assert 0 < caught.value.retry_after_ms <= 86_400_000
    budget = await small_store.budgets.check("bob")
    assert budget is not None and (budget.limit, budget.remaining) == (20, 20)
    assert 0 < budget.reset_ms <= 86_400_000


async def test_a_response_is_charged_once(small_store: SessionStore) -> None:
    response_id = new_response_id(new_session_id())
    for _ in range(3):
        await small_store.budgets.charge("alice", response_id, 7, local_ms())
    assert await used(small_store) == 7
    names = await small_store.client.call("KEYS", f"{small_store.keys.prefix}u:*")
    lives = [await small_store.client.call("PTTL", name) for name in names]
    assert len(names) == 2 and all(0 < life <= 40 * 86_400_000 for life in lives)


async def test_without_a_budget_tokens_are_counted_and_refuse_nobody(store: SessionStore) -> None:
    await store.budgets.charge("alice", new_response_id(new_session_id()), 7, local_ms())
    assert await store.budgets.check("alice") is None
    assert (await store.budgets.usage(["alice"]))[0].tokens_today == 7


async def test_what_users_keep_and_have_used_is_read_together(small_store: SessionStore) -> None:
    for _ in range(2):
        await Chat.create(small_store)
    await small_store.budgets.charge("bob", new_response_id(new_session_id()), 9, local_ms())
    alice, bob = await small_store.budgets.usage(["alice", "bob"])
    assert (alice.num_sessions, alice.tokens_today) == (2, 0)
    assert (bob.num_sessions, bob.tokens_today) == (0, 9)


async def test_what_a_user_has_used_goes_with_the_user(small_store: SessionStore) -> None:
    await small_store.budgets.charge("alice", new_response_id(new_session_id()), 7, local_ms())
    await Users(small_store.client, small_store.keys).forget("alice")
    assert await used(small_store) == 0
