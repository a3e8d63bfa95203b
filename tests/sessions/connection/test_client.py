"""`RedisClient`: one batch for a tick, replies never crossed, scripts reloaded, quick failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import SequenceGap, StoreUnavailable
from sessions.store.store import SessionStore
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.helpers.running_time import running_time
from tests.sessions.helpers.chat import Chat


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[RedisClient]:
    client = RedisClient(redis_server.url)
    yield client
    await client.close()


async def test_calls_of_one_tick_are_applied_in_the_order_they_were_made(
    client: RedisClient, prefix: str
) -> None:
    key = prefix + "list"
    replies = await asyncio.gather(*(client.call("RPUSH", key, n) for n in range(2000)))
    assert replies == list(range(1, 2001))
    assert await client.call("LRANGE", key, 0, -1) == [b"%d" % n for n in range(2000)]


async def test_calls_of_one_tick_travel_together(client: RedisClient) -> None:
    async def num_reads() -> int:
        info = bytes(await client.call("INFO", "stats")).decode()
        return int(info.split("total_reads_processed:")[1].split()[0])

    try:
        before = await num_reads()
    except IndexError:
        pytest.skip("this redis does not count reads")
    await asyncio.gather(*(client.call("PING") for _ in range(400)))
    assert await num_reads() - before < 20


async def test_each_caller_gets_its_own_reply_also_when_others_are_cancelled(
    client: RedisClient,
) -> None:
    async def ask(number: int) -> None:
        assert await client.call("ECHO", number) == b"%d" % number

    for _ in range(20):
        tasks = [asyncio.create_task(ask(number)) for number in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        assert replies[1::2] == [None] * 25


async def test_one_reading_command_on_many_keys_is_few_calls(
    client: RedisClient, prefix: str
) -> None:
    keys = [f"{prefix}{number}" for number in range(600)]
    await client.calls(*(("HSET", key, "a", n) for n, key in enumerate(keys) if n % 3))
    before = client.num_calls
    values = await client.read_each(keys, "HMGET", "a", "b")
    assert values == [[b"%d" % n if n % 3 else None, None] for n in range(600)]
    assert client.num_calls - before == 3
    assert await client.read_each(keys[:2], "HGETALL") == [[], [b"a", b"1"]]
    assert await client.read_each([], "HGETALL") == []


async def test_one_wrong_command_fails_alone(client: RedisClient, prefix: str) -> None:
    commands = (("ECHO", "a"), ("HSET", prefix + "x"), ("ECHO", "b"))
    replies = await asyncio.gather(*(client.call(*c) for c in commands), return_exceptions=True)
    assert (replies[0], replies[2]) == (b"a", b"b")
    assert isinstance(replies[1], ResponseError)


async def test_a_command_that_cannot_be_sent_takes_no_reply_of_another(
    client: RedisClient,
) -> None:
    await client.call("PING")  # connected: what follows is written at once
    with pytest.raises(UnicodeEncodeError):
        await client.call("ECHO", "\ud800")
    assert await asyncio.gather(*(client.call("ECHO", n) for n in range(3))) == [b"0", b"1", b"2"]


async def test_scripts_come_back_after_script_flush(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    for number in range(2, 12):
        flush = chat.store.client.call("SCRIPT", "FLUSH") if number % 2 else asyncio.sleep(0)
        await asyncio.gather(flush, chat.append(rid, number, "x"))
    assert [number for number, _ in await chat.store.runs.events(rid)] == list(range(1, 12))


async def test_many_scripts_in_flight_survive_a_flush(store: SessionStore) -> None:
    chats = [await Chat.create(store) for _ in range(10)]
    rids = [(await chat.begin()).response_id for chat in chats]
    await asyncio.gather(
        *(chat.append(rid, 2, "a") for chat, rid in zip(chats[:5], rids[:5], strict=True)),
        store.client.call("SCRIPT", "FLUSH"),
        *(chat.append(rid, 2, "a") for chat, rid in zip(chats[5:], rids[5:], strict=True)),
    )
    for rid in rids:
        assert len(await store.runs.events(rid)) == 2


async def test_what_follows_a_forgotten_script_finds_it_done(store: SessionStore) -> None:
    await store.client.call("SCRIPT", "FLUSH")
    created = await store.sessions.create("alice", idempotency_key="k")  # a script, then a read
    assert created.session.uid == "alice"


async def test_a_change_that_races_with_a_flush_answers_with_what_it_changed(
    store: SessionStore,
) -> None:
    for number in range(5):
        _, chat = await asyncio.gather(
            store.client.everywhere("SCRIPT", "FLUSH"), Chat.create(store)
        )
        changed, _ = await asyncio.gather(
            store.sessions.update("alice", chat.session_id, title=str(number)),
            store.client.everywhere("SCRIPT", "FLUSH"),
        )
        assert (changed.title, changed.revision) == (str(number), 2)


async def test_a_slow_link_costs_each_call_one_round_trip(redis_server: EmbeddedRedis) -> None:
    with FaultProxy(redis_server.socket_path) as proxy:
        client = RedisClient(f"redis://{proxy.address}")
        await client.call("PING")
        proxy.command("delay 0.2")
        started = running_time()
        first = asyncio.create_task(client.call("PING"))
        await asyncio.sleep(0.1)
        await client.call("PING")  # does not wait for the first one's reply
        assert running_time() - started < 0.1 + 0.4 + 0.2
        await first
        await client.close()


async def test_a_killed_connection_is_replaced_without_an_error(chat: Chat) -> None:
    killer = RedisClient(chat.store.client.url)
    rid = (await chat.begin()).response_id
    for number in range(2, 8):
        append = asyncio.create_task(chat.append(rid, number, "x"))
        if number % 2:
            await killer.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await append
    assert [number for number, _ in await chat.store.runs.events(rid)] == list(range(1, 8))
    await killer.close()


async def test_a_dead_redis_fails_calls_quickly_and_a_living_one_serves_again(
    own_redis: EmbeddedRedis, own_store: SessionStore
) -> None:
    chat = await Chat.create(own_store)
    own_redis.stop()
    started = running_time()
    replies = await asyncio.gather(*(own_store.ping() for _ in range(50)), return_exceptions=True)
    assert all(isinstance(reply, StoreUnavailable) for reply in replies)
    assert running_time() - started < 1.0
    own_redis.start()
    assert (await own_store.sessions.get("alice", chat.session_id)).id == chat.session_id


async def test_a_silent_redis_fails_calls_after_the_timeout(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    hung_up = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        hung_up.set()

    server = await asyncio.start_unix_server(say_nothing, path)
    client = RedisClient(f"unix://{path}", timeout_seconds=0.1)
    started = running_time()
    replies = await asyncio.gather(
        *(client.call("PING") for _ in range(1000)), return_exceptions=True
    )
    assert all(isinstance(reply, StoreUnavailable) for reply in replies)
    assert running_time() - started < 0.6
    await client.close()
    await hung_up.wait()
    server.close()
    await server.wait_closed()


async def test_a_reply_that_came_while_the_event_loop_was_blocked_is_no_timeout(
    redis_server: EmbeddedRedis,
) -> None:
    client = RedisClient(redis_server.url, timeout_seconds=0.1)
    await client.call("PING")
    for _ in range(5):
        calling = asyncio.gather(*(client.call("ECHO", number) for number in range(2000)))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)
        assert await calling == [b"%d" % number for number in range(2000)]
    await client.close()


async def test_a_paused_redis_does_not_store_an_append_twice(chat: Chat) -> None:
    """The first try times out and is applied later; the repeat must find its traces."""
    url = chat.store.client.url
    hasty = chat.on(await SessionStore.open(url, prefix=chat.store.keys.prefix))
    hasty.store.client.timeout_seconds = 0.05
    rid = (await chat.begin()).response_id
    await chat.store.client.everywhere("CLIENT", "PAUSE", 500, "ALL")
    with pytest.raises(StoreUnavailable):
        await hasty.append(rid, 2, "x")
    hasty.store.client.timeout_seconds = 2.0
    await hasty.append(rid, 2, "x")
    assert len(await chat.store.runs.events(rid)) == 2
    with pytest.raises(SequenceGap):
        await hasty.append(rid, 4, "y")
    await hasty.store.close()


async def test_a_closed_client_refuses_calls(client: RedisClient) -> None:
    await client.close()
    await client.close()
    with pytest.raises(StoreUnavailable):
        await client.call("PING")


async def test_a_full_memory_is_an_outage_but_stop_finish_and_delete_work(
    own_store: SessionStore,
) -> None:
    chat = await Chat.create(own_store)
    rid = (await chat.begin()).response_id
    await own_store.client.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreUnavailable):
        await chat.append(rid, 2, "x")
    with pytest.raises(StoreUnavailable):
        await chat.begin(on_busy="queue")
    assert (await own_store.runs.request_cancel("alice", rid)).first
    await chat.finish(rid, 2, status="cancelled", reason="client_cancelled")
    await own_store.sessions.delete("alice", chat.session_id)
    await own_store.client.call("CONFIG", "SET", "maxmemory", "0")
    await chat.keys()


async def test_a_memory_that_fills_up_between_index_and_session_leaves_no_session(
    own_store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = own_store.sessions.reserve

    async def reserve_the_last_byte(uid: str, session_id: str, *, hidden: bool) -> None:
        await reserve(uid, session_id, hidden=hidden)
        await own_store.client.call("CONFIG", "SET", "maxmemory", "1")

    monkeypatch.setattr(own_store.sessions, "reserve", reserve_the_last_byte)
    with pytest.raises(StoreUnavailable):
        await Chat.create(own_store)
    await own_store.client.call("CONFIG", "SET", "maxmemory", "0")
    assert (await own_store.lists.page("alice")).sessions == ()


async def test_a_read_only_replica_is_an_outage_and_is_left_for_the_new_primary(
    own_store: SessionStore,
) -> None:
    chat = await Chat.create(own_store)
    await own_store.client.call("REPLICAOF", "127.0.0.1", "1")
    before = await own_store.client.call("CLIENT", "ID")
    with pytest.raises(StoreUnavailable):
        await chat.begin()
    assert await own_store.client.call("CLIENT", "ID") != before
    assert (await own_store.sessions.get("alice", chat.session_id)).message_count == 0
    await own_store.client.call("REPLICAOF", "NO", "ONE")
    await chat.begin()
