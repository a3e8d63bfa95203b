"""`python -m bench.fairness`: how long first tokens take, alone and beside a greedy user.

No user has a limit, as on loopback. The greedy one keeps as many answers running as there are seats
and more of them waiting; the other asks a question, or many at once, stops each answer at its first
token and asks again. The target is twice the 99th percentile alone.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench.harness.report import Figure, latencies, percentile, report
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import BenchSocket, random_key
from engine import demo_model
from server.config.settings import DEMO_PACE
from tests.end_to_end.site.harness import Server

PROMPT = "Please tell me a very long story."
SEATS = 64
SESSIONS_OF_A_SOCKET = 55  # a connection may watch 64
QUESTIONS_OF_A_SESSION = 10
MOST_OF_ALONE = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--pace", type=float, default=DEMO_PACE, help="tokens/s of each answer")
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 40], help="at a time")
    parser.add_argument("--first-tokens", type=int, default=400, help="measured, of each kind")
    parser.add_argument("--queue", type=int, default=100, help="of the greedy user, waiting")
    arguments = parser.parse_args()
    figures = []
    with running_server(arguments.model, PARLEY_PACE=f"{arguments.pace:g}") as server:
        for count in arguments.questions:
            num_rounds = max(1, arguments.first_tokens // count)
            alone, beside = uvloop.run(compare(server, count, num_rounds, SEATS + arguments.queue))
            what = f"first of {count} at a time"
            figures += [
                *latencies(f"{what}, alone", alone, None),
                *latencies(f"{what}, beside", beside, MOST_OF_ALONE * percentile(alone, 99) * 1e3),
                Figure(f"{what}, p99 beside to alone", ratio(beside, alone), MOST_OF_ALONE, "×"),
            ]
    report("fairness", figures)


def ratio(beside: Sequence[float], alone: Sequence[float]) -> float:
    return percentile(beside, 99) / percentile(alone, 99)


async def compare(
    server: Server, count: int, num_rounds: int, num_greedy: int
) -> tuple[list[float], list[float]]:
    """Seconds to first tokens of so many questions at a time, alone and beside the other user."""
    own, greedy = await user_tokens(server, 2)
    sockets = [await BenchSocket.open(server, own) for _ in range(count)]
    try:
        await first_tokens(sockets, 1)  # nothing is asked for the first time then
        alone = await first_tokens(sockets, num_rounds)
        async with asking_for_all(server, greedy, num_greedy):
            beside = await first_tokens(sockets, num_rounds)
    finally:
        for socket in sockets:
            socket.close()
    return alone, beside


async def first_tokens(sockets: Sequence[BenchSocket], num_rounds: int) -> list[float]:
    """A question on each socket at the same moment, so many times."""
    found: list[float] = []
    sessions: list[str] = []
    for number in range(num_rounds):
        if number % QUESTIONS_OF_A_SESSION == 0:
            for socket, session in zip(sockets, sessions, strict=number > 0):
                await socket.reply("session.unsubscribe", session_id=session)
            sessions = [await socket.new_session() for socket in sockets]
        asking = [
            first_token(socket, session) for socket, session in zip(sockets, sessions, strict=True)
        ]
        found += await asyncio.gather(*asking)
    return found


async def first_token(socket: BenchSocket, session: str) -> float:
    started = time.monotonic()
    create(socket, session)
    seconds = (await socket.next("response.output_text.delta")).at - started
    socket.send("stop", session_id=session)
    await socket.next("response.done")
    return seconds


@contextlib.asynccontextmanager
async def asking_for_all(server: Server, token: str, num_answers: int) -> AsyncIterator[None]:
    """Somebody with so many answers at any time, once the engine has no seat left for more."""
    sockets, tasks = [], []
    for first in range(0, num_answers, SESSIONS_OF_A_SOCKET):
        socket = await BenchSocket.open(server, token)
        sockets.append(socket)
        count = min(SESSIONS_OF_A_SOCKET, num_answers - first)
        sessions = [await socket.new_session() for _ in range(count)]
        for session in sessions:
            create(socket, session)
        tasks.append(asyncio.create_task(ask_again(socket)))
    try:
        while await asyncio.to_thread(server.metric, "parley_requests_running") < SEATS:
            if ended := [task for task in tasks if task.done()]:
                ended[0].result()
            await asyncio.sleep(0.1)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for socket in sockets:
            socket.send("stop")
            socket.close()


async def ask_again(socket: BenchSocket) -> None:
    """The next question in each session whose answer has ended."""
    while True:
        response: dict[str, Any] = (await socket.next("response.done")).body["response"]
        socket.forget()
        create(socket, response["session_id"])


def create(socket: BenchSocket, session: str) -> None:
    socket.send("response.create", session_id=session, idempotency_key=random_key(), input=PROMPT)


if __name__ == "__main__":
    main()
