"""What a Redis must be like before Parley trusts it: one check at the start, one line on failure.

In a cluster every primary is checked. Settings may change while we run: `find_faults` is the part
that runs again.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import Final

from redis import exceptions

from sessions.connection.client import RedisClient
from sessions.connection.link import first_line, is_authentication_error
from sessions.connection.rights import missing_rights
from sessions.model.errors import StoreRefused, StoreUnavailable
from sessions.model.keys import SCHEMA, Keys
from sessions.model.replies import StoreFault

logger = logging.getLogger("parley.sessions")

MIN_VERSION: Final = (6, 2)
FULL_AT: Final = 0.8  # of maxmemory: time to act while everything works


async def check_redis(client: RedisClient, keys: Keys, *, secret: str | None = None) -> str | None:
    """Return what `read_identity` does if this Redis can keep the store's promises.

    Raises `StoreUnavailable` when it does not answer and `StoreRefused` when it must not be used:
    too old, evicting, without a right we need, with data of another schema, or used by servers
    with another `secret`.
    """
    try:
        for info in await _infos(client):
            _check_info(info, is_cluster=client.address.kind == "cluster")
            if info["redis_version"].startswith("6."):
                await _check_replication(client)
        for scratch in await client.key_for_each_primary(f"{keys.prefix}sys:scratch"):
            if missing := await missing_rights(client, scratch):
                raise StoreRefused(f"Redis denies our user {', '.join(missing)}")
        await _check_schema(client, keys)
        if secret is not None:
            await _check_secret(client, keys, secret)
        return await read_identity(client, keys)
    except StoreUnavailable as error:
        if is_authentication_error(error):
            raise StoreRefused("Redis refused our credentials") from error
        raise
    except exceptions.ResponseError as error:
        raise StoreRefused(f"Redis refused a command we need: {first_line(error)}") from error


async def find_faults(client: RedisClient) -> list[StoreFault]:
    """What an operator must mend although everything works so far."""
    faults = []
    for info in await _infos(client):
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            text = f"maxmemory-policy is {policy} and must be noeviction"
            faults.append(StoreFault(text, loses_data=True))
        limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
        if limit and used > FULL_AT * limit:
            tenths = 10 * used // limit  # a figure that changed each time would fill the log
            faults.append(StoreFault(f"redis memory is over {tenths}0 % full"))
        if info.get("aof_last_bgrewrite_status") == "err":
            faults.append(StoreFault("redis could not rewrite its append-only file: see its disk"))
    return list(dict.fromkeys(faults))


async def read_identity(client: RedisClient, keys: Keys) -> str | None:
    """The random name of the data set, given to it now if it has none; None if that fails.

    Another name than before means that the data was lost: somebody flushed it.
    """
    try:
        *_, identity = await client.calls(
            ("HSETNX", keys.system, "schema", SCHEMA),  # missing after a flush, too
            ("HSETNX", keys.system, "identity", secrets.token_urlsafe(9)),
            ("HGET", keys.system, "identity"),
        )
    except StoreUnavailable:
        identity = await client.call("HGET", keys.system, "identity")
    return None if identity is None else str(identity.decode())


async def _infos(client: RedisClient) -> list[dict[str, str]]:
    """What INFO says at each primary; RESP3 may wrap the text."""
    infos = []
    for text in await client.everywhere("INFO"):
        lines = bytes(text).decode(errors="replace").splitlines()
        infos.append(dict(line.split(":", 1) for line in lines if ":" in line))
    return infos


def _check_info(info: dict[str, str], *, is_cluster: bool) -> None:
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        raise StoreRefused(f"Redis {version} is too old: Parley needs 6.2 or later")
    if info.get("cluster_enabled") == "1" and not is_cluster:
        raise StoreRefused("this Redis is a cluster: its url begins with redis+cluster://")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"Redis would evict conversations: set maxmemory-policy noeviction (it is {policy})"
        )
    if info.get("aof_enabled") == "0":
        logger.warning("redis has no append-only file: a restart loses conversations")


async def _check_replication(client: RedisClient) -> None:
    """6.2 can be set to replicate scripts whole; then none may call TIME before it writes."""
    try:
        replies = await client.everywhere("CONFIG", "GET", "lua-replicate-commands")
    except exceptions.ResponseError:
        logger.info("redis denies CONFIG: its settings were not checked")
        return
    if any(reply.get(b"lua-replicate-commands") == b"no" for reply in replies):
        raise StoreRefused("Redis must replicate script effects: set lua-replicate-commands yes")


async def _check_schema(client: RedisClient, keys: Keys) -> None:
    """Refuse data of another layout; a fresh Redis is marked with ours."""
    stored = await _claim(client, keys, "schema", SCHEMA)
    if stored != SCHEMA:
        raise StoreRefused(f"the data has schema {stored}, this version of Parley reads {SCHEMA}")


async def _check_secret(client: RedisClient, keys: Keys, secret: str) -> None:
    """Refuse servers that would not understand each other's credentials."""
    ours = hashlib.sha256(b"parley fingerprint\0" + secret.encode()).hexdigest()[:16]
    if await _claim(client, keys, "fingerprint", ours) != ours:
        raise StoreRefused("another server with another secret uses this Redis: give both the same")


async def _claim(client: RedisClient, keys: Keys, field: str, value: str) -> str:
    """What `sys` says; our value if it said nothing, which it says from now on."""
    stored = await client.call("HGET", keys.system, field)
    if stored is None:
        try:
            await client.call("HSETNX", keys.system, field, value)
        except StoreUnavailable:
            logger.warning("redis takes no writes now")
            return value
        stored = await client.call("HGET", keys.system, field)
    return str(stored.decode())
