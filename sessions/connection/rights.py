"""Which commands Parley sends: what an ACL user must be allowed, tried out at the start.

The list is the truth of docs/operations.md's ACL line, and tests hold it against the source and
against `INFO commandstats`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from redis import exceptions

from sessions.connection.client import RedisClient
from sessions.connection.link import Command
from sessions.model.errors import StoreUnavailable

# By family; each removes what the one before it leaves. `K` is a scratch key of ours.
TRIALS: Final[tuple[Command, ...]] = (
    ("PING",),
    ("TIME",),
    ("INFO", "server"),
    ("EXISTS", "K"),
    ("GET", "K"),
    ("GETDEL", "K"),
    ("DEL", "K"),
    ("APPEND", "K", "x"),
    ("PEXPIRE", "K", 1000),
    ("PTTL", "K"),
    ("PERSIST", "K"),
    ("UNLINK", "K"),
    ("SET", "K", "x", "PX", 1000),
    ("UNLINK", "K"),
    ("HSET", "K", "f", 1),
    ("HSETNX", "K", "f", 1),
    ("HGET", "K", "f"),
    ("HMGET", "K", "f"),
    ("HGETALL", "K"),
    ("HEXISTS", "K", "f"),
    ("HINCRBY", "K", "f", 1),
    ("HDEL", "K", "f"),
    ("RPUSH", "K", "x"),
    ("LLEN", "K"),
    ("LRANGE", "K", 0, 0),
    ("LREM", "K", 0, "y"),
    ("LPOP", "K"),
    ("ZADD", "K", 1, "x"),
    ("ZCARD", "K"),
    ("ZSCORE", "K", "x"),
    ("ZRANGE", "K", 0, 0),
    ("ZRANGEBYSCORE", "K", 0, 0),
    ("ZREMRANGEBYSCORE", "K", 0, 0),
    ("ZREM", "K", "x"),
    ("XADD", "K", "1-0", "d", "x"),
    ("XRANGE", "K", "-", "+"),
    ("XREVRANGE", "K", "+", "-"),
    ("UNLINK", "K"),
    ("EVAL", "return 1", 1, "K"),
    ("PUBLISH", "K", ""),
)
# Sent in places where a trial would show nothing new: a connection does not open without them.
CONNECTING: Final = ("AUTH", "HELLO", "SELECT", "SCRIPT", "EVALSHA", "SUBSCRIBE", "UNSUBSCRIBE")
# CONFIG GET and PUBSUB NUMSUB alone. Managed servers deny the first, and checks are left out then;
# without the second everything is published, also what nobody but its own writer hears.
OPTIONAL: Final = ("CONFIG", "PUBSUB")
CLUSTER: Final = ("CLUSTER", "ASKING")
SENTINEL: Final = ("ROLE",)
COMMANDS: Final = frozenset(str(words[0]) for words in TRIALS).union(
    CONNECTING, OPTIONAL, CLUSTER, SENTINEL
)


async def missing_rights(client: RedisClient, key: str) -> list[str]:
    """What our user may not do, in words for the operator; empty if nothing is missing.

    `key` is any name under our prefix; nothing is left there. Raises `StoreUnavailable`.
    """
    calls = []
    for words in TRIALS:
        calls.append(client.call(*(key if word == "K" else word for word in words)))
    replies = await asyncio.gather(
        *calls, client.script("check_access", [key]), return_exceptions=True
    )
    names = [*(str(words[0]) for words in TRIALS), "EVALSHA"]
    denied = {
        _named(name, reply)
        for name, reply in zip(names, replies, strict=True)
        if isinstance(reply, exceptions.ResponseError) and _is_denial(reply)
    }
    if isinstance(replies[0], StoreUnavailable):
        raise replies[0]
    return sorted(denied | await _missing_subscription(client, key))


async def _missing_subscription(client: RedisClient, channel: str) -> set[str]:
    connection = await client.open_connection(protocol=2)
    try:
        async with asyncio.timeout(client.timeout_seconds):
            await connection.send_command("SUBSCRIBE", channel)
            await connection.read_response()
    except TimeoutError:
        raise StoreUnavailable("Redis did not answer in time") from None
    except exceptions.ResponseError as error:
        return {_named("SUBSCRIBE", error)}
    finally:
        await connection.disconnect(nowait=True)
    return set()


def _is_denial(error: exceptions.ResponseError) -> bool:
    return isinstance(error, exceptions.NoPermissionError) or "unknown command" in str(error)


def _named(command: str, error: exceptions.ResponseError) -> str:
    # "… to access one of the keys used as arguments" before Redis 7, "… to access a key" since
    if re.search(r"access (one of the keys|a key)\b", str(error)):
        return "the keys under our prefix"
    if re.search(r"access (one of the channels|a channel)\b", str(error)):
        return "the channels under our prefix"
    return command


def acl_rule(prefix: str = "parley:") -> str:
    """The words after `ACL SETUSER name on >password` that give what is needed, and no more."""
    only = {
        "CLUSTER": "cluster|slots",
        "CONFIG": "config|get",
        "PUBSUB": "pubsub|numsub",
        "SCRIPT": "script|load",
    }
    free = {"AUTH"}  # never denied; 6.2 knows no rule for it
    names = sorted(only.get(name, name.lower()) for name in COMMANDS - free)
    commands = " ".join("+" + name for name in names)
    return f"resetkeys ~{prefix}* resetchannels &{prefix}* -@all {commands}"
