"""`Replicas`: who is there, as long as they say so."""

import asyncio

from sessions.directory.replicas import Replicas
from sessions.store.store import SessionStore


async def test_workers_that_gave_a_sign_of_life_are_known_with_their_figures(
    store: SessionStore,
) -> None:
    replicas = Replicas(store.client, store.keys)
    await replicas.beat("w2", {"version": "1", "active": 0})
    await replicas.beat("w1", {"version": "1", "active": 3})
    first, second = await replicas.all()
    assert (first.id, second.id) == ("w1", "w2")
    assert first.figures == {"version": "1", "active": "3"}
    await replicas.beat("w1", {"version": "1", "active": 4})
    again, _ = await replicas.all()
    assert again.figures["active"] == "4"
    assert again.seen_at >= first.seen_at


async def test_a_silent_worker_does_not_count_and_is_forgotten_in_the_end(
    store: SessionStore,
) -> None:
    silent = Replicas(store.client, store.keys, life_seconds=0.02, memory_seconds=0.02)
    await silent.beat("w1", {"active": 0})
    await asyncio.sleep(0.05)
    assert await silent.all() == []
    await silent.beat("w2", {"active": 0})
    assert await store.client.call("ZRANGE", store.keys.replicas, 0, -1) == [b"w2"]
    assert await store.client.call("EXISTS", store.keys.replica("w1")) == 0


async def test_operators_hear_of_a_silent_worker_until_it_is_heard_or_has_left(
    store: SessionStore,
) -> None:
    replicas = Replicas(store.client, store.keys, life_seconds=0.02, late_seconds=0.02)
    await replicas.beat("w1", {"active": 3})
    first = (await Replicas(store.client, store.keys).roll()).present[0]
    await asyncio.sleep(0.05)
    roll = await replicas.roll()
    assert (roll.present, roll.missing) == ((), (first,))
    assert roll.now_ms - first.seen_at >= 20
    await Replicas(store.client, store.keys).beat("w1", {"active": 3})
    assert (await Replicas(store.client, store.keys).roll()).missing == ()
    await asyncio.sleep(0.05)
    assert [one.id for one in (await replicas.roll()).missing] == ["w1"]
    await replicas.leave("w1")
    assert (await replicas.roll()).missing == ()


async def test_a_worker_that_leaves_is_gone_at_once(store: SessionStore) -> None:
    replicas = Replicas(store.client, store.keys)
    await replicas.beat("w1", {"active": 0})
    await replicas.leave("w1")
    await replicas.leave("w1")
    assert await replicas.all() == []
