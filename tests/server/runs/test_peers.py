"""`Peers`: who else is there, and who could go on with this worker's answers."""

import asyncio
import contextlib

import pytest

from server.runs.peers import Peers
from sessions.directory.replicas import Replicas
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE


def peers(store: SessionStore, name: str, model: str = "same") -> tuple[Peers, dict[str, int]]:
    state = {"draining": 0}
    replicas = Replicas(store.client, store.keys)

    def figures() -> dict[str, str | int | float]:
        return {"model_fingerprint": model, **state}

    return Peers(replicas, name, figures, report_seconds=1, look_seconds=3), state


async def test_others_are_known_and_oneself_is_none(store: SessionStore) -> None:
    alone, _ = peers(store, "w1")
    await alone.beat()
    assert not alone.are_known()
    other, _ = peers(store, "w2")
    await other.beat()
    await alone.beat()
    assert alone.are_known() and other.are_known()
    await alone.forget("w2")
    assert not alone.are_known()


async def test_successor_has_the_same_model_and_stays(store: SessionStore) -> None:
    leaving, _ = peers(store, "w1")
    stays, state = peers(store, "w2")
    stranger, _ = peers(store, "w3", model="other")
    for each in (stays, stranger, leaving):
        await each.beat()
    assert leaving.successor("same") == "w2"
    assert leaving.successor("other") == "w3"
    state["draining"] = 1
    for each in (stays, leaving):
        await each.beat()
    assert leaving.successor("same") is None
    assert leaving.are_known()


async def test_what_was_known_stays_known_while_redis_is_away(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = peers(store, "w1")
    second, _ = peers(store, "w2")
    await second.beat()
    await first.beat()

    async def away(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(store.client, "call", away)
    with pytest.raises(StoreUnavailable):
        await first.beat()
    assert first.are_known()


async def test_a_change_that_matters_is_announced_before_the_next_sign_of_life_is_due(
    store: SessionStore,
) -> None:
    engine = "ok"
    announced: asyncio.Queue[str] = asyncio.Queue()

    def figures() -> dict[str, str]:
        announced.put_nowait(engine)
        return {"engine": engine}

    replicas = Replicas(store.client, store.keys)
    peers = Peers(replicas, "w1", figures, report_seconds=2 * PATIENCE, look_seconds=3)
    beating = asyncio.create_task(peers.beat_forever())
    async with asyncio.timeout(PATIENCE):
        assert await announced.get() == "ok"
        engine = "unavailable"
        peers.beat_soon()
        assert await announced.get() == "unavailable"
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
