"""Websocket chats against a running server: decoding rate, time to first token, stop latency."""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.end_to_end.site.harness import Client, Server

PROMPT = "Please tell me a very long story."


@dataclass(slots=True)
class ChatResult:
    """One answer as its client saw it; seconds."""

    num_tokens: int
    first_token_seconds: float
    total_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """While decoding: the first token is the prompt's doing."""
        return (self.num_tokens - 1) / (self.total_seconds - self.first_token_seconds)


@dataclass(slots=True)
class LoadResult:
    """Several chats at once."""

    chats: list[ChatResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """All tokens over the whole time, prompts included."""
        return sum(chat.num_tokens for chat in self.chats) / self.seconds

    @property
    def first_token_seconds(self) -> list[float]:
        return [chat.first_token_seconds for chat in self.chats]


async def one_chat(client: Client, max_tokens: int, seed: int) -> ChatResult:
    """Ask in a new session and follow the answer to its end."""
    session = await client.new_session()
    settings = {"max_output_tokens": max_tokens, "seed": seed}
    started = time.perf_counter()
    response = await client.ask(session, PROMPT, settings=settings)
    await client.deltas(response, 1)
    first = time.perf_counter() - started
    answer = await client.done(response)
    total = time.perf_counter() - started
    assert answer.done is not None
    usage: dict[str, Any] = answer.done["response"]["usage"]
    return ChatResult(usage["output_tokens"], first, total)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """The clients keep what they heard: looking through it costs them up to 0.2 s at 64 chats."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def load(server: Server, num_chats: int, max_tokens: int) -> LoadResult:
    """`num_chats` connections that ask at the same moment."""
    clients = [Client(server) for _ in range(num_chats)]
    await asyncio.gather(*(client.__aenter__() for client in clients))
    try:
        with no_garbage_collection():
            started = time.perf_counter()
            chats = await asyncio.gather(
                *(one_chat(client, max_tokens, seed) for seed, client in enumerate(clients))
            )
            return LoadResult(list(chats), time.perf_counter() - started)
    finally:
        await asyncio.gather(*(client.__aexit__() for client in clients))


async def stop_latencies(server: Server, num_stops: int, seed: int) -> list[float]:
    """Seconds from sending `stop` to receiving `response.done`, at random moments of answers."""
    chance = random.Random(seed)
    latencies = []
    async with Client(server) as client:
        session = await client.new_session()
        for _ in range(num_stops):
            response = await client.ask(session, PROMPT)
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            started = time.perf_counter()
            await client.send("stop", response_id=response)
            await client.done(response)
            latencies.append(time.perf_counter() - started)
    return latencies
