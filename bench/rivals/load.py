"""Many chats at once: through the server, and by the same engine without one."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.report import Figure
from bench.harness.servers import user_tokens
from bench.harness.socket_client import BenchSocket
from bench.rivals.idle import the_worker
from bench.rivals.questions import DELTA, ask, prompt_of
from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from tests.end_to_end.site.harness import Server

LOADS = (8, 16)  # chats at once


@dataclass(slots=True)
class Side:
    """One number per round."""

    rates: list[float] = field(default_factory=list)  # tokens/s of all chats together
    first_ms: list[float] = field(default_factory=list)  # median over the chats


def load_figures(server: Server, model: Path, rounds: int, num_tokens: int) -> list[Figure]:
    """Parley and the engine alone take turns; the first turn warms both up."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model)))
    sides = {(num_chats, side): Side() for num_chats in LOADS for side in ("app", "direct")}
    words = itertools.count(0, 50)
    spent: dict[int, list[float]] = {num_chats: [] for num_chats in LOADS}

    async def measure() -> None:
        tokens = await user_tokens(server, max(LOADS))
        for number, num_chats in itertools.product(range(rounds + 1), LOADS):
            chats = [next(words) % 9000 for _ in range(num_chats)]
            others = [next(words) % 9000 for _ in range(num_chats)]
            before = sum(the_worker(server).cpu_times()[:2])
            app = await through_app(server, tokens, chats, num_tokens)
            cpu_ms = 1e3 * (sum(the_worker(server).cpu_times()[:2]) - before)
            direct = await at_engine(engine, others, num_tokens)
            if number:
                spent[num_chats].append(cpu_ms / num_chats / num_tokens)
                for side, (seconds, first) in (("app", app), ("direct", direct)):
                    sides[num_chats, side].rates.append(num_chats * num_tokens / seconds)
                    sides[num_chats, side].first_ms.append(1e3 * statistics.median(first))

    try:
        asyncio.run(measure())
    finally:
        engine.shutdown()
    figures = []
    for num_chats in LOADS:
        app, direct = sides[num_chats, "app"], sides[num_chats, "direct"]
        share = statistics.median(a / b for a, b in zip(app.rates, direct.rates, strict=True))
        later = [a - b for a, b in zip(app.first_ms, direct.first_ms, strict=True)]
        title = f"{num_chats} chats: "
        figures += [
            Figure(title + "tokens/s, app", statistics.median(app.rates), None, ""),
            Figure(title + "tokens/s, direct", statistics.median(direct.rates), None, ""),
            Figure(title + "tokens/s lost of direct", 100 * (1 - share), 5.0, "%"),
            Figure(title + "first token, app", statistics.median(app.first_ms), None, "ms"),
            Figure(title + "first token, later than direct", statistics.median(later), 10.0, "ms"),
            Figure(title + "worker CPU per token", statistics.median(spent[num_chats]), 0.15, "ms"),
        ]
    return figures


async def through_app(
    server: Server, tokens: list[str], words: list[int], num_tokens: int
) -> tuple[float, list[float]]:
    """Seconds for all answers, each of another user, and until the first text of each."""
    sockets = [await BenchSocket.open(server, tokens[n]) for n in range(len(words))]

    async def chat(socket: BenchSocket, word: int) -> tuple[float, float]:
        asked = await ask(socket, word, num_tokens)
        first = (await socket.next(DELTA)).at - asked
        return first, (await socket.next("response.done")).at

    started = time.monotonic()
    ends = await asyncio.gather(*map(chat, sockets, words))
    for socket in sockets:
        socket.close()
    return max(end for _, end in ends) - started, [first for first, _ in ends]


async def at_engine(
    engine: AsyncLLM, words: list[int], num_tokens: int
) -> tuple[float, list[float]]:
    """The same without a server."""
    params = SamplingParams(
        temperature=0, max_tokens=num_tokens, output_kind=RequestOutputKind.DELTA
    )

    async def chat(word: int) -> float:
        asked, first = time.monotonic(), 0.0
        async with answer(engine, word, params) as outputs:
            async for _ in outputs:
                first = first or time.monotonic() - asked
        return first

    started = time.monotonic()
    first = await asyncio.gather(*map(chat, words))
    return time.monotonic() - started, list(first)


@asynccontextmanager
async def answer(
    engine: AsyncLLM, word: int, params: SamplingParams
) -> AsyncIterator[AsyncIterator[Any]]:
    outputs = engine.generate(prompt_of(word), params, f"{word}-{time.monotonic_ns()}")
    try:
        yield outputs
    finally:
        await outputs.aclose()
