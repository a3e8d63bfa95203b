"""`python -m bench.stop_latency`: from `stop` to `response.done`, at the owner and through another.

Several chats at a time ask, wait for a random moment and stop; every stop is at the worker that
writes the answer in the first part, and at another worker in the second. Each chat begins a new
session after `--questions` of them. The model is paced as it is served; `--pace 0` is a machine
with nothing left to do a stop with.
"""

import argparse
import asyncio
import contextlib
import random
import time
from pathlib import Path

import uvloop

from bench.harness.report import Figure, latencies, report
from bench.harness.servers import running_server
from bench.harness.socket_client import BenchSocket
from engine import demo_model
from server.config.settings import DEMO_PACE
from tests.end_to_end.site.harness import Server

PROMPT = "Please tell me a very long story."
MAX_AFTER_STEP_MS = 10.0
MAX_ELSEWHERE_MS = 100.0
NUM_CHATS = 4
MAX_WAIT_SECONDS = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stop_latency", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--stops", type=int, default=1000, help="of each kind")
    parser.add_argument("--questions", type=int, default=10, help="in each session")
    parser.add_argument("--pace", type=float, default=DEMO_PACE, help="tokens/s of each answer")
    arguments = parser.parse_args()
    pace = f"{arguments.pace:g}"
    with running_server(arguments.model, PARLEY_WORKERS="2", PARLEY_PACE=pace) as server:
        before = step_figures(server)
        owner = uvloop.run(stops(server, arguments.stops, arguments.questions, elsewhere=False))
        after = step_figures(server)
        other = uvloop.run(stops(server, arguments.stops, arguments.questions, elsewhere=True))
    step_ms = (after[0] - before[0]) / max(1.0, after[1] - before[1]) * 1e3
    report(
        "stop_latency",
        [
            Figure("decode step, mean", step_ms, None, "ms"),
            *latencies("stop at the owner", owner, step_ms + MAX_AFTER_STEP_MS),
            *latencies("stop through another worker", other, MAX_ELSEWHERE_MS),
        ],
    )


def step_figures(server: Server) -> tuple[float, float]:
    """Sum and count of the core's decode steps, in seconds."""
    name = "parley_decode_step_seconds"
    return server.metric(f"{name}_sum"), server.metric(f"{name}_count")


async def stops(
    server: Server, num_stops: int, num_questions: int, *, elsewhere: bool
) -> list[float]:
    """Seconds from each stop to the end, on the connection that stopped."""
    seeds = range(NUM_CHATS)
    each = -(-num_stops // NUM_CHATS)
    runs = (chat(server, each, num_questions, random.Random(seed), elsewhere) for seed in seeds)
    return [seconds for chat_seconds in await asyncio.gather(*runs) for seconds in chat_seconds]


async def chat(
    server: Server, num_stops: int, num_questions: int, chance: random.Random, elsewhere: bool
) -> list[float]:
    asker, replica = await connected(server)
    stopper = asker
    if elsewhere:
        stopper, _ = await connected(server, besides=replica)
    session = ""
    latencies: list[float] = []
    for number in range(num_stops):
        if number % num_questions == 0:
            session = await asker.new_session()
            if elsewhere:
                stopper.send("session.subscribe", session_id=session)
                await stopper.next("session.subscribed")
        response = await asker.ask(session, PROMPT)
        await asyncio.sleep(chance.uniform(0.0, MAX_WAIT_SECONDS))
        started = time.monotonic()
        stopper.send("stop", response_id=response)
        latencies.append((await stopper.next("response.done")).at - started)
        if elsewhere:
            await asker.next("response.done")
    for socket in {asker, stopper}:
        socket.close()
    return latencies


async def connected(server: Server, besides: str | None = None) -> tuple[BenchSocket, str]:
    """A connection and its worker; to another worker than `besides`, as the kernel chooses."""
    while True:
        socket = await BenchSocket.open(server)
        ready = socket.received[0].body
        if ready["replica"] != besides:
            return socket, str(ready["replica"])
        socket.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)


if __name__ == "__main__":
    main()
