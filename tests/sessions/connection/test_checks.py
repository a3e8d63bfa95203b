"""Start-up checks: a Redis that would lose or misread data is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sessions.connection.checks import _check_info
from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreRefused, StoreUnavailable
from sessions.model.replies import StoreFault
from sessions.store.store import SessionStore


async def test_a_redis_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await SessionStore.open(f"unix://{tmp_path}/none")


async def test_an_evicting_redis_is_refused(own_redis: EmbeddedRedis) -> None:
    await command(own_redis, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreRefused, match="noeviction"):
        await SessionStore.open(own_redis.url)


async def test_data_of_another_schema_is_refused(own_redis: EmbeddedRedis) -> None:
    await (await SessionStore.open(own_redis.url)).close()
    await command(own_redis, "HSET", "parley:sys", "schema", "2")
    with pytest.raises(StoreRefused, match="schema 2"):
        await SessionStore.open(own_redis.url)


async def test_a_denied_command_is_named(own_redis: EmbeddedRedis) -> None:
    await command(own_redis, *"ACL SETUSER poor on >pw ~* &* +@all -xadd -lpop".split())
    with pytest.raises(StoreRefused, match=r"denies our user LPOP, XADD$"):
        await SessionStore.open(as_user(own_redis, "poor"))


async def test_until_it_was_verified_a_store_refuses_every_call(own_redis: EmbeddedRedis) -> None:
    store = SessionStore.connect(own_redis.url)
    for call in (store.ping(), store.lists.page("alice"), store.client.open_connection()):
        with pytest.raises(StoreUnavailable):
            await call
    await store.verify()
    assert store.is_verified and await store.ping()
    await store.close()


async def test_denied_scripts_are_refused(own_redis: EmbeddedRedis) -> None:
    await command(own_redis, *"ACL SETUSER dumb on >pw ~* &* +@all -@scripting".split())
    with pytest.raises(StoreRefused):
        await SessionStore.open(as_user(own_redis, "dumb"))


async def test_denied_config_is_no_reason_to_refuse(own_redis: EmbeddedRedis) -> None:
    await command(own_redis, *"ACL SETUSER managed on >pw ~* &* +@all -config".split())
    await (await SessionStore.open(as_user(own_redis, "managed"))).close()


async def test_wrong_credentials_are_refused_and_not_retried_for_ever(
    own_redis: EmbeddedRedis,
) -> None:
    with pytest.raises(StoreRefused, match="credentials"):
        await SessionStore.open(as_user(own_redis, "nobody"))


async def test_a_prefix_with_braces_is_refused(own_redis: EmbeddedRedis) -> None:
    with pytest.raises(ValueError, match="braces"):
        await SessionStore.open(own_redis.url, prefix="{x}")


async def test_servers_with_different_secrets_are_refused(own_redis: EmbeddedRedis) -> None:
    await (await SessionStore.open(own_redis.url, secret="one")).close()
    await (await SessionStore.open(own_redis.url, secret="one")).close()
    with pytest.raises(StoreRefused, match="another secret"):
        await SessionStore.open(own_redis.url, secret="two")
    client = RedisClient(own_redis.url)
    assert b"one" not in bytes(b" ".join((await client.call("HGETALL", "parley:sys")).values()))
    await client.close()


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "0"])
def test_a_version_before_6_2_is_refused(version: str) -> None:
    with pytest.raises(StoreRefused, match=f"{version} is too old"):
        _check_info({"redis_version": version}, is_cluster=False)


async def test_faults_are_found_while_it_runs(own_redis: EmbeddedRedis) -> None:
    store = await SessionStore.open(own_redis.url)
    assert await store.find_faults() == []
    client = RedisClient(own_redis.url)  # stays open: its memory is a part of what is used
    await client.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    info = bytes(await client.call("INFO", "memory")).decode().splitlines()
    used = int(next(line for line in info if "used_memory:" in line)[12:])
    await client.call("CONFIG", "SET", "maxmemory", used * 10 // 9)
    policy, full = await store.find_faults()
    await client.close()
    wrong = StoreFault("maxmemory-policy is allkeys-lru and must be noeviction", loses_data=True)
    assert policy == wrong
    assert re.fullmatch(r"redis memory is over (8|9|10)0 % full", full.text) and not full.loses_data
    await store.close()


async def test_flushed_data_is_noticed_once_by_each_worker(own_redis: EmbeddedRedis) -> None:
    stores = [await SessionStore.open(own_redis.url) for _ in range(2)]
    assert [await store.ping() for store in stores] == [True, True]
    await command(own_redis, "FLUSHALL")
    assert [await store.ping() for store in stores] == [False, False]
    assert [await store.ping() for store in stores] == [True, True]
    await (await SessionStore.open(own_redis.url)).close()  # marked with our schema again
    for store in stores:
        await store.close()


async def test_a_restart_that_keeps_the_data_is_no_loss(own_redis: EmbeddedRedis) -> None:
    store = await SessionStore.open(own_redis.url)
    own_redis.stop()
    own_redis.start()
    assert await store.ping()
    await store.close()


async def test_what_takes_no_writes_answers_a_ping_all_the_same(own_redis: EmbeddedRedis) -> None:
    store = await SessionStore.open(own_redis.url)
    await command(own_redis, "CONFIG", "SET", "maxmemory", "1")
    assert await store.ping()
    with pytest.raises(StoreUnavailable):
        await store.check_writes()
    await command(own_redis, "CONFIG", "SET", "maxmemory", "0")
    await store.check_writes()
    await store.close()


async def test_the_checks_leave_nothing_but_the_schema(own_redis: EmbeddedRedis) -> None:
    await (await SessionStore.open(own_redis.url)).close()
    client = RedisClient(own_redis.url)
    assert await client.call("KEYS", "*") == [b"parley:sys"]
    await client.close()


def as_user(redis: EmbeddedRedis, name: str) -> str:
    return f"{redis.url}?username={name}&password=pw"


async def command(redis: EmbeddedRedis, *words: str) -> None:
    client = RedisClient(redis.url)
    await client.call(*words)
    await client.close()
