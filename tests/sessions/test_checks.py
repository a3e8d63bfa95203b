"""Start-up checks: a Redis that would lose or misread data is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.client import RedisClient
from sessions.embedded import EmbeddedRedis
from sessions.errors import StoreRefused, StoreUnavailable
from sessions.store import SessionStore


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
    with pytest.raises(StoreRefused, match="LPOP, XADD"):
        await SessionStore.open(as_user(own_redis, "poor"))


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
