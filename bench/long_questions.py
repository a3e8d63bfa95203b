"""`python -m bench.long_questions`: how long a user waits for a first token beside long questions.

Another user sends questions of 120 KB, which no context can hold, over several connections as fast
as each is refused. Short questions are asked in turns without and with that, on one worker; what
counts is the ratio.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.harness.report import Figure, report
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import BenchSocket, random_key
from engine import demo_model
from tests.end_to_end.site.harness import Server

NUM_ATTACKERS = 4
LONG = "Why did the grey cat go to the sea? " * 3400  # 120 KB
SHORT = "Tell me a story."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_questions", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--rounds", type=int, default=5, help="without and with")
    parser.add_argument("--questions", type=int, default=10, help="in each part of a round")
    arguments = parser.parse_args()
    with running_server(arguments.model) as server:
        alone, beside, num_refused = asyncio.run(
            measure(server, arguments.rounds, arguments.questions)
        )
    before, after = statistics.median(alone) * 1e3, statistics.median(beside) * 1e3
    report(
        "long_questions",
        [
            Figure("first token, alone, p50", before, None, "ms"),
            Figure("first token, beside long questions, p50", after, None, "ms"),
            Figure("ratio", after / before, None, ""),
            Figure("long questions refused", float(num_refused), None, ""),
        ],
    )


async def measure(
    server: Server, num_rounds: int, num_questions: int
) -> tuple[list[float], list[float], int]:
    """Seconds to each first token, without and with the others; how many of theirs were refused."""
    victim, attacker = await user_tokens(server, 2)
    socket = await BenchSocket.open(server, victim)
    await first_tokens(socket, num_questions)  # warm
    alone: list[float] = []
    beside: list[float] = []
    refused: list[str] = []
    for _ in range(num_rounds):
        alone += await first_tokens(socket, num_questions)
        async with attacking(server, attacker, refused):
            beside += await first_tokens(socket, num_questions)
    socket.close()
    assert set(refused) == {"context_length_exceeded"}, set(refused)
    return alone, beside, len(refused)


async def first_tokens(socket: BenchSocket, num_questions: int) -> list[float]:
    session = await socket.new_session()
    waits = []
    for _ in range(num_questions):
        asked = time.monotonic()
        await socket.ask(session, SHORT, max_output_tokens=8)
        waits.append((await socket.next("response.output_text.delta")).at - asked)
        await socket.next("response.done")
    return waits


@contextlib.asynccontextmanager
async def attacking(server: Server, token: str, refused: list[str]) -> AsyncIterator[None]:
    """Four connections, until the block ends; `refused` grows by a code for each question."""

    async def attack() -> None:
        socket = await BenchSocket.open(server, token)
        session = await socket.new_session()
        try:
            while True:
                key = {"session_id": session, "idempotency_key": random_key()}
                answer = await socket.reply("response.create", input=LONG, **key)
                refused.append(answer["error"]["code"])
        finally:
            socket.close()

    tasks = [asyncio.create_task(attack()) for _ in range(NUM_ATTACKERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    main()
