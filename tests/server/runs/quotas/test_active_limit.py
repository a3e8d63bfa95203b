"""`ActiveLimit`: a user's running answers are counted over all workers, and never counted twice."""

import asyncio
from typing import Any

import pytest

from server.protocol.errors import ApiError
from server.runs.quotas.active_limit import ActiveLimit
from sessions.model.errors import NoSlot
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.quotas import Room
from sessions.store.quotas.slots import SLOT_MS
from sessions.store.store import SessionStore


class Spawner:
    """The hub's part of it."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.create_task(work))


def response() -> str:
    return new_response_id(new_session_id())


async def test_as_many_answers_as_the_limit_run_on_all_workers_together(
    store: SessionStore,
) -> None:
    hub: Any = Spawner()
    here, there = ActiveLimit(store, hub, 2), ActiveLimit(store, hub, 2)
    first = response()
    assert await here.take("alice", first) == Room(2, 1)
    assert await there.take("alice", response()) == Room(2, 0)
    for worker in (here, there):
        with pytest.raises(ApiError) as refused:
            await worker.take("alice", response())
        assert (refused.value.code, refused.value.retry_after_ms) == ("rate_limited", 1000)
    assert await here.take("bob", response()) == Room(2, 1)
    there.free("alice", first)
    await asyncio.gather(*hub.tasks)
    assert await here.take("alice", response()) == Room(2, 0)


async def test_without_a_limit_nobody_is_counted(store: SessionStore) -> None:
    limit = ActiveLimit(store, Spawner(), 0)  # type: ignore[arg-type]
    assert await limit.take("alice", response()) is None
    assert await store.client.call("KEYS", f"{store.keys.prefix}u:*") == []


async def test_an_answer_that_takes_the_place_of_another_is_not_one_more(
    store: SessionStore,
) -> None:
    limit = ActiveLimit(store, Spawner(), 1)  # type: ignore[arg-type]
    await limit.take("alice", response())
    assert await limit.take("alice", response(), instead=True) == Room(1, 0)


async def test_a_repeat_after_a_lost_reply_counts_once(store: SessionStore) -> None:
    rid = response()
    assert [await store.slots.take("alice", rid, 1) for _ in range(3)] == [Room(1, 0)] * 3
    with pytest.raises(NoSlot):
        await store.slots.take("alice", response(), 1)


async def test_a_slot_that_nobody_renews_is_free_again(store: SessionStore) -> None:
    rid = response()
    await store.slots.take("alice", rid, 1)
    key = store.keys.user_slots("alice")
    assert await store.client.call("PTTL", key) > SLOT_MS / 2
    await store.client.call("ZADD", key, 1, rid)  # as if the time had passed
    assert await store.slots.take("alice", response(), 1) == Room(1, 0)


async def test_a_renewal_keeps_the_slot_under_any_limit(store: SessionStore) -> None:
    rid, other = response(), response()
    await store.slots.take("alice", rid, 1)
    await store.slots.renew("alice", other, 1)  # taken over from a worker with another limit
    assert await store.client.call("ZCARD", store.keys.user_slots("alice")) == 2
