"""What a Redis must be like before Parley trusts it: one look at the start, one line on failure."""

from __future__ import annotations

import logging
from typing import Final

from redis import exceptions

from sessions.client import RedisClient, first_line, is_authentication_error
from sessions.errors import StoreRefused, StoreUnavailable
from sessions.keys import SCHEMA, Keys

logger = logging.getLogger("parley.sessions")

MIN_VERSION: Final = (6, 2)


async def check_redis(client: RedisClient, keys: Keys) -> None:
    """Return if this Redis can keep the store's promises.

    Raises `StoreUnavailable` when it does not answer and `StoreRefused` when it must not be used:
    too old, evicting, without scripts or a command they need, or with data of another schema.
    """
    try:
        info = await _info(client)
        _check_info(info)
        await _check_replication(client, info)
        await _check_access(client, keys)
        await _check_schema(client, keys)
    except StoreUnavailable as error:
        if is_authentication_error(error):
            raise StoreRefused("Redis refused our credentials") from error
        raise
    except exceptions.ResponseError as error:
        raise StoreRefused(f"Redis refused a command we need: {first_line(error)}") from error


async def _info(client: RedisClient) -> dict[str, str]:
    """What INFO says; RESP3 may wrap the text."""
    text = await client.call("INFO")
    lines = bytes(text).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _check_info(info: dict[str, str]) -> None:
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        raise StoreRefused(f"Redis {version} is too old: Parley needs 6.2 or later")
    if info.get("cluster_enabled") == "1":
        raise StoreRefused("Redis Cluster is not supported yet")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"Redis would evict conversations: set maxmemory-policy noeviction (it is {policy})"
        )
    if info.get("aof_enabled") == "0":
        logger.warning("redis has no append-only file: a restart loses conversations")


async def _check_replication(client: RedisClient, info: dict[str, str]) -> None:
    """6.2 can be told to replicate scripts whole; then none may call TIME before it writes."""
    if not info["redis_version"].startswith("6."):
        return
    try:
        reply = await client.call("CONFIG", "GET", "lua-replicate-commands")
    except exceptions.ResponseError:
        logger.info("redis denies CONFIG: its settings were not checked")
        return
    if reply.get(b"lua-replicate-commands") == b"no":
        raise StoreRefused("Redis must replicate script effects: set lua-replicate-commands yes")


async def _check_access(client: RedisClient, keys: Keys) -> None:
    scratch = f"{keys.prefix}sys:scratch"
    reply = await client.script("check_access", [scratch], ("PUBLISH", f"{scratch}:live"))
    if denied := sorted({command.decode() for command in reply[1:]}):
        raise StoreRefused(f"Redis denies our user the commands {', '.join(denied)}")


async def _check_schema(client: RedisClient, keys: Keys) -> None:
    """Refuse data of another layout; a fresh Redis is marked with ours."""
    stored = await client.call("HGET", keys.system, "schema")
    if stored is None:
        try:
            await client.call("HSETNX", keys.system, "schema", SCHEMA)
        except StoreUnavailable:
            logger.warning("redis takes no writes now")
    elif stored.decode() != SCHEMA:
        raise StoreRefused(
            f"the data has schema {stored.decode()}, this version of Parley reads {SCHEMA}"
        )
