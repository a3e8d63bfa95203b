"""A primary and its replica under sentinels: the primary is found, and found again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from sessions.connection.client import RedisClient
from sessions.connection.feed import LiveFeed
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import redis_binaries
from tests.helpers.redis_topology import Guarded, command, running_pair, running_sentinels, wait_for
from tests.helpers.running_time import running_time
from tests.sessions.helpers.chat import Chat

OLDEST = list(redis_binaries().values())[-1:]


@pytest.fixture(params=[1, pytest.param(3, marks=pytest.mark.slow)])
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    if not OLDEST:
        pytest.skip("no redis-server found")
    with running_sentinels(OLDEST[0], size=request.param) as guarded:
        yield guarded


async def test_after_a_failover_the_new_primary_is_found_and_the_run_goes_on(
    guarded: Guarded,
) -> None:
    store = await SessionStore.open(guarded.url)
    resynced = asyncio.Event()
    async with LiveFeed(
        store.client, store.keys, probe_seconds=0.1, probe_timeout_seconds=0.5
    ) as feed:
        feed.on_resync(resynced.set)
        chat = await Chat.create(store)
        rid = (await chat.begin()).response_id
        await chat.append(rid, 2, "a")
        assert await store.client.call("WAIT", 1, 900) == 1  # the replica has it, too
        pid = guarded.primary.redis.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        started = running_time()
        while True:
            try:
                await chat.append(rid, 3, "b")
                break
            except StoreUnavailable:
                assert running_time() - started < 15
                await asyncio.sleep(0.05)
        assert guarded.primary_port() == guarded.replica.port
        assert [number for number, _ in await store.runs.events(rid)] == [1, 2, 3]
        assert await store.ping()  # the same data
        await asyncio.wait_for(resynced.wait(), PATIENCE)
    await store.close()


@pytest.mark.slow  # sentinels wait 10 s before they tell the old primary
async def test_a_primary_that_became_a_replica_is_left(guarded: Guarded) -> None:
    store = await SessionStore.open(guarded.url)
    chat = await Chat.create(store)
    await asyncio.to_thread(switch_over, guarded)
    assert (await chat.begin()).fence == 1
    assert (await store.sessions.get("alice", chat.session_id)).message_count == 2
    assert role_of(guarded.primary.port) == b"slave"
    await store.close()


def switch_over(guarded: Guarded) -> None:
    """A failover without a death; the old primary stays, as a replica."""
    command(guarded.sentinels[0], "SENTINEL", "FAILOVER", "parley")
    wait_for(lambda: guarded.primary_port() == guarded.replica.port)
    wait_for(lambda: role_of(guarded.primary.port) == b"slave")
    wait_for(lambda: role_of(guarded.replica.port) == b"master")


def role_of(port: int) -> object:
    reply = command(port, "ROLE")
    assert isinstance(reply, list)
    return reply[0]


async def test_an_unknown_service_and_absent_sentinels_are_unavailable(guarded: Guarded) -> None:
    for url, words in (
        (guarded.url.replace("/parley", "/other"), "no sentinel knows the service other"),
        ("redis+sentinel://127.0.0.1:1/parley", "no sentinel answers"),
    ):
        client = RedisClient(url)
        with pytest.raises(StoreUnavailable, match=words):
            await client.call("PING")
        await client.close()


@pytest.mark.row("R8")
async def test_a_replica_is_an_outage_for_writes_and_no_crash() -> None:
    if not OLDEST:
        pytest.skip("no redis-server found")
    with running_pair(OLDEST[0]) as (primary, replica):
        store = await SessionStore.open(primary.url)
        chat = await Chat.create(store)
        assert await store.client.call("WAIT", 1, 900) == 1
        reader = await SessionStore.open(replica.url)
        assert (await reader.sessions.get("alice", chat.session_id)).id == chat.session_id
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await chat.on(reader).begin()
            with pytest.raises(StoreUnavailable):
                await reader.check_writes()
        assert await reader.ping()
        await reader.close()
        await store.close()
