"""`python -m bench.loop_lag`: how late the event loop of an engine's client gets its turns.

A ticker wants a turn every 10 ms and notes how much later it came, while another task has a prompt
of 5 MB tokenized, and while 256 answers stream at once. What is late here is late for every socket
of a web worker.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness.report import percentile
from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams, demo_model
from engine.errors import ValidationError

TICK_SECONDS = 0.01
PROMPT_BYTES = 5_000_000
NUM_STREAMS = 256
SENTENCE = "Once upon a time a small grey cat wanted to know where the tide went. "


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loop_lag", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--tokens", type=int, default=64, help="length of each answer")
    arguments = parser.parse_args()
    args = AsyncEngineArgs(str(arguments.model), max_num_seqs=NUM_STREAMS)
    engine = AsyncLLM.from_engine_args(args)
    try:
        figures = asyncio.run(measure(engine, arguments.tokens))
    finally:
        engine.shutdown()
    show(figures)


async def measure(engine: AsyncLLM, num_tokens: int) -> dict[str, list[float]]:
    """What was going on → the seconds by which each tick was late."""
    await stream(engine, "warm", num_tokens)
    figures = {}
    async with ticking() as late:
        await asyncio.sleep(2.0)
    figures["nothing"] = late
    async with ticking() as late:
        for _ in range(3):
            await refuse_long_prompt(engine)
    figures["a prompt of 5 MB, 3 times"] = late
    async with ticking() as late:
        streams = (stream(engine, f"s{number}", num_tokens) for number in range(NUM_STREAMS))
        await asyncio.gather(*streams)
    figures[f"{NUM_STREAMS} streams of {num_tokens} tokens"] = late
    return figures


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Tick until the block ends; the list grows by one entry each time."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            late.append(time.perf_counter() - due)

    task = asyncio.create_task(tick())
    await asyncio.sleep(TICK_SECONDS)
    try:
        yield late
    finally:
        task.cancel()


async def refuse_long_prompt(engine: AsyncLLM) -> None:
    """The whole prompt is tokenized, and found to be longer than a context of 625,000 tokens.

    A smaller context, such as the demo model's, is known to be too small before that.
    """
    text = SENTENCE * (PROMPT_BYTES // len(SENTENCE))
    with contextlib.suppress(ValidationError):
        await engine.tokenizer.encode_async(text, max_length=PROMPT_BYTES // 8)


async def stream(engine: AsyncLLM, request_id: str, num_tokens: int) -> None:
    params = SamplingParams(
        max_tokens=num_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    async for _ in engine.generate(f"{SENTENCE}{request_id}", params, request_id):
        pass


def show(figures: dict[str, list[float]]) -> None:
    table = Table(title="lateness of the event loop in ms")
    for heading in ("while", "ticks", "p50", "p99", "max"):
        table.add_column(heading, justify="left" if heading == "while" else "right")
    for what, late in figures.items():
        milliseconds = sorted(seconds * 1e3 for seconds in late)
        row = (percentile(milliseconds, 50), percentile(milliseconds, 99), milliseconds[-1])
        table.add_row(what, str(len(late)), *(f"{value:.1f}" for value in row))
    Console().print(table)


if __name__ == "__main__":
    main()
