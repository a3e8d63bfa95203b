"""What a session takes in Redis: ten minutes, an hour and a day after its last use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.capacity.parts import REDIS, WORKER, Parts, Stopwatch
from bench.capacity.visitors import QUESTION, Visitor, arrive, leave
from bench.harness.report import Figure
from sessions.connection.client import RedisClient
from tests.end_to_end.site.harness import Server

NUM_TURNS = 3  # six messages
LENGTHS = (40, 160)  # tokens of an answer
NUM_SOCKETS = 32
# What is gone by then, by a part of its keys (docs/storage/sessions.md).
GONE = {
    "after ten minutes": (":r:", ":e:", ":tok:"),
    "after an hour": (":log",),
    "after a day": (":i:",),
}
SCAN_COUNT = 1000


async def stored_sessions(server: Server, num_sessions: int) -> list[Figure]:
    """Bytes of a session of six messages, with short and with long answers."""
    visitors = await arrive(server, server.redis_url, NUM_SOCKETS, with_sessions=False)
    client = RedisClient(server.redis_url)
    try:
        await visitors[0].answer(1, await visitors[0].socket.new_session())
        for keys in GONE.values():
            await _forget(client, keys)
        kept, text = [], []
        figures = []
        for length in LENGTHS:
            before = await _used(client)
            characters = await _fill(visitors, num_sessions, length)
            mean = characters / num_sessions + NUM_TURNS * len(QUESTION)
            what = f"a session of six messages, {mean:.0f} characters"
            size = (await _used(client) - before) / num_sessions
            figures.append(Figure(f"{what}: at once", size / 1024, None, "KiB"))
            for when, keys in GONE.items():
                await _forget(client, keys)
                size = (await _used(client) - before) / num_sessions
                figures.append(Figure(f"{what}: {when}", size / 1024, None, "KiB"))
            kept.append(size)
            text.append(mean)
        slope = (kept[1] - kept[0]) / (text[1] - text[0])
        return [
            *figures,
            Figure("a session: for each character", slope, None, "bytes"),
            Figure("a session: beside its text", (kept[0] - slope * text[0]) / 1024, None, "KiB"),
        ]
    finally:
        await client.close()
        leave(visitors)


async def short_answers(server: Server, num_answers: int) -> list[Figure]:
    """Processor time of an answer of one token: question, begin, first words, end."""
    parts = Parts.of(server)
    visitors = await arrive(server, server.redis_url, NUM_SOCKETS, with_sessions=True)
    await asyncio.gather(*(visitor.answer(1) for visitor in visitors))
    watch = Stopwatch(parts)

    async def chat(visitor: Visitor) -> None:
        for _ in range(num_answers // NUM_SOCKETS):
            await visitor.answer(1, await visitor.socket.new_session())

    await asyncio.gather(*map(chat, visitors))
    used = watch.elapsed()
    leave(visitors)
    num = num_answers // NUM_SOCKETS * NUM_SOCKETS
    return [
        Figure(f"an answer of a token in a new session: {part}", used[part] / num * 1e3, None, "ms")
        for part in (WORKER, REDIS)
    ]


async def _fill(visitors: list[Visitor], num_sessions: int, num_tokens: int) -> int:
    """Make so many sessions; the characters of all their answers."""
    left = iter(range(num_sessions))
    characters = 0

    async def chat(visitor: Visitor) -> None:
        nonlocal characters
        for _ in left:
            session = await visitor.socket.new_session()
            for _ in range(NUM_TURNS):
                length = await visitor.answer(num_tokens, session)
                characters += length

    await asyncio.gather(*map(chat, visitors))
    return characters


async def _used(client: RedisClient) -> int:
    reply = await client.call("INFO", "memory")
    lines = _text(reply).splitlines()
    return next(int(line.split(":")[1]) for line in lines if line.startswith("used_memory:"))


async def _forget(client: RedisClient, parts: Sequence[str]) -> None:
    """Delete the keys that have one of these parts, as if their time had come."""
    cursor = "0"
    while True:
        cursor, keys = await client.call("SCAN", cursor, "COUNT", SCAN_COUNT)
        gone = [key for key in keys if any(part in _text(key) for part in parts)]
        if gone:
            await client.call("DEL", *gone)
        if _text(cursor) == "0":
            return


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
