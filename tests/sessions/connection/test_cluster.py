"""A cluster of three primaries: every promise of the store holds where sessions are on any node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from sessions.connection.client import RedisClient
from sessions.connection.feed import LiveFeed
from sessions.model.errors import SessionNotFound, StoreRefused, StoreUnavailable
from sessions.model.events import LivePayload, LiveResponseEvents, LiveSessionEvents
from sessions.store.store import SessionStore
from tests.helpers.redis_server import fresh_prefix, redis_binaries
from tests.helpers.redis_topology import RedisCluster, Server, running_cluster
from tests.sessions.helpers.chat import Chat

OLDEST = list(redis_binaries().values())[-1:]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    if not OLDEST:
        pytest.skip("no redis-server found")
    with running_cluster(OLDEST[0]) as cluster:
        yield cluster


@pytest.fixture
async def store(cluster: RedisCluster) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(cluster.url, prefix=fresh_prefix())
    yield store
    await store.close()


async def chats_everywhere(store: SessionStore, cluster: RedisCluster) -> list[Chat]:
    """One session on each primary."""
    chats: dict[Server, Chat] = {}
    while len(chats) < len(cluster.servers):
        chat = await Chat.create(store)
        chats.setdefault(owner_of(chat, cluster), chat)
    return list(chats.values())


def slot_of(chat: Chat) -> int:
    return key_slot(chat.store.keys.session(chat.session_id, "m").encode())


def owner_of(chat: Chat, cluster: RedisCluster) -> Server:
    slots = cluster.servers[0].command("CLUSTER", "SLOTS")
    assert isinstance(slots, list)
    for first, last, primary, *_ in slots:  # type: ignore[misc]
        if first <= slot_of(chat) <= last:  # type: ignore[operator]
            return next(s for s in cluster.servers if s.port == primary[1])  # type: ignore[index]
    raise AssertionError("no owner")


async def test_a_conversation_on_every_node(store: SessionStore, cluster: RedisCluster) -> None:
    for chat in await chats_everywhere(store, cluster):
        rid = (await chat.begin("hello")).response_id
        await chat.append(rid, 2, "a", "b")
        waiting = (await chat.begin(on_busy="queue")).response_id
        assert (await store.runs.request_cancel("alice", rid)).first
        finished = await chat.finish(rid, 4, status="cancelled", reason="client_cancelled")
        assert finished.next_response_id == waiting
        assert [number for number, _ in await store.runs.events(rid)] == [1, 2, 3, 4]
        assert waiting in await store.runs.owned_by("w1")
        assert (await store.sessions.get("alice", chat.session_id)).message_count == 4
        assert chat.session_id in {s.id for s in (await store.lists.page("alice")).sessions}
        await store.sessions.delete("alice", chat.session_id)
        with pytest.raises(SessionNotFound):
            await store.sessions.get("alice", chat.session_id)
        assert chat.session_id not in {s.id for s in (await store.lists.page("alice")).sessions}


async def test_what_one_worker_stores_another_hears_at_every_node(
    store: SessionStore, cluster: RedisCluster
) -> None:
    heard: asyncio.Queue[LivePayload] = asyncio.Queue()
    chats = await chats_everywhere(store, cluster)

    async def hear() -> LivePayload:
        """What comes next; but the news of a creation may be late between two nodes."""
        while isinstance(payload := await heard.get(), LiveSessionEvents) and payload.offset == 1:
            pass
        return payload

    async with LiveFeed(store.client, store.keys) as feed:
        for chat in chats:
            await feed.subscribe(store.keys.session_channel(chat.session_id), heard.put_nowait)
        for chat in chats:
            rid = (await chat.begin()).response_id
            payload = await hear()
            assert isinstance(payload, LiveSessionEvents) and payload.offset == 3
            payload = await hear()
            assert isinstance(payload, LiveResponseEvents) and payload.response_id == rid


async def test_one_reading_command_finds_keys_on_every_node(
    store: SessionStore, cluster: RedisCluster
) -> None:
    chats = await chats_everywhere(store, cluster)
    keys = [store.keys.session(chat.session_id, "m") for chat in chats]
    assert await store.client.read_each(keys, "HGET", "uid") == [b"alice"] * len(chats)


async def test_calls_made_in_order_are_applied_in_order_across_nodes(store: SessionStore) -> None:
    """An index before its data: the first failure keeps what comes later from being sent."""
    keys = await store.client.key_for_each_primary(store.keys.prefix + "x")
    assert len(keys) == 3
    with pytest.raises(ResponseError, match="wrong number"):
        await store.client.calls_in_order(("HSET", keys[0]), ("SET", keys[1], "late"))
    assert await store.client.call("GET", keys[1]) is None


async def test_a_slot_on_the_move_is_an_outage_at_worst_and_then_followed(
    store: SessionStore, cluster: RedisCluster
) -> None:
    chat = (await chats_everywhere(store, cluster))[0]
    rid = (await chat.begin()).response_id
    await chat.append(rid, 2, "before")
    source = owner_of(chat, cluster)
    target = next(server for server in cluster.servers if server is not source)
    begin_migration(cluster, slot_of(chat), source, target)
    await chat.append(rid, 3, "nothing has moved yet")
    run, *others = sorted(keys_in(source, slot_of(chat)), key=lambda key: ":r:" not in key)
    migrate(run, source, target)
    assert (await store.runs.get(None, rid)).sequence_number == 3  # asked for where it is
    with pytest.raises(StoreUnavailable):  # a script would meet half of a session
        await chat.append(rid, 4, "on the way")
    for key in others:
        migrate(key, source, target)
    await chat.append(rid, await next_number(chat, rid), "where it is asked for")
    for server in cluster.servers:
        server.command("CLUSTER", "SETSLOT", slot_of(chat), "NODE", cluster.id_of(target))
    await chat.append(rid, await next_number(chat, rid), "moved")
    await chat.finish(rid, await next_number(chat, rid))
    numbers = [number for number, _ in await store.runs.events(rid)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 6
    await asyncio.to_thread(cluster.wait_until_ok)


async def next_number(chat: Chat, response_id: str) -> int:
    return (await chat.store.runs.get(None, response_id)).sequence_number + 1


def begin_migration(cluster: RedisCluster, slot: int, source: Server, target: Server) -> None:
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))


def keys_in(server: Server, slot: int) -> list[str]:
    keys = server.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    assert isinstance(keys, list)
    return [key.decode() for key in keys if isinstance(key, bytes)]


def migrate(key: str, source: Server, target: Server) -> None:
    source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)


async def test_a_dead_node_is_an_outage_for_its_sessions_alone(
    store: SessionStore, cluster: RedisCluster
) -> None:
    for server in cluster.servers:
        server.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
    chats = await chats_everywhere(store, cluster)
    victim = owner_of(chats[0], cluster)
    victim.redis.stop()
    with pytest.raises(StoreUnavailable):
        await chats[0].begin()
    with pytest.raises(StoreUnavailable):
        await store.ping()
    assert (await store.sessions.get("alice", chats[1].session_id)).id == chats[1].session_id
    victim.redis.start()
    await asyncio.to_thread(cluster.wait_until_ok)
    await chats[0].begin()
    await store.ping()
    await store.check_writes()


async def test_every_primary_is_checked_at_the_start(cluster: RedisCluster) -> None:
    cluster.servers[2].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreRefused, match="noeviction"):
            await SessionStore.open(cluster.url, prefix=fresh_prefix())
    finally:
        cluster.servers[2].command("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_a_cluster_behind_the_url_of_one_server_is_named(cluster: RedisCluster) -> None:
    with pytest.raises(StoreRefused, match=r"redis\+cluster://"):
        await SessionStore.open(cluster.servers[0].url)


async def test_a_cluster_that_is_away_is_unavailable_within_the_timeout() -> None:
    client = RedisClient("redis+cluster://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(StoreUnavailable):
        await client.call("GET", "x")
    with pytest.raises(StoreUnavailable):
        await client.everywhere("PING")
    await client.close()
