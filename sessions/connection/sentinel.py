"""Which server is the primary: asked of every sentinel, believed by majority, checked by ROLE."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from sessions.connection.address import Node, RedisAddress

ASK_SECONDS: Final = 0.3  # a sentinel that is slower is left out


async def connect_to_primary(
    address: RedisAddress, *, protocol: int, timeout_seconds: float
) -> AbstractConnection:
    """A connection to the server that is the primary now; raises `ConnectionError` otherwise."""
    node = await _primary(address)
    connection = address.connection(node, protocol=protocol, timeout_seconds=timeout_seconds)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        await connection.send_command("ROLE")
        role = await connection.read_response()
        if role[0] != b"master":  # the sentinels have not heard yet, or it has not
            raise exceptions.ConnectionError("the sentinels' primary is a replica")
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


async def _primary(address: RedisAddress) -> Node:
    answers = await asyncio.gather(
        *(_ask(address, sentinel) for sentinel in address.nodes), return_exceptions=True
    )
    known = Counter(answer for answer in answers if isinstance(answer, tuple))
    if known:
        return known.most_common(1)[0][0]
    if all(isinstance(answer, BaseException) for answer in answers):
        raise exceptions.ConnectionError("no sentinel answers")
    raise exceptions.ConnectionError(f"no sentinel knows the service {address.service}")


async def _ask(address: RedisAddress, sentinel: Node) -> Node | None:
    connection = address.sentinel_connection(sentinel, timeout_seconds=ASK_SECONDS)
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
            reply = await connection.read_response()
    finally:
        await connection.disconnect(nowait=True)
    return None if reply is None else (reply[0].decode(), int(reply[1]))
