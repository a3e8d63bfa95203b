"""`python -m bench.stop_latency`: from a stop to the end, from a steer to the next answer's text.

Several chats at a time ask, wait for a random moment and stop; every stop is at the worker that
writes the answer in the first part, and at another worker in the second. Each chat begins a new
session after `--questions` of them. In the third part one chat steers its answers; every other time
it stops the answer first, and asks the same words when that has ended: the same prompt, without the
wait for a step. The model is paced as it is served; `--pace 0` is a machine
with nothing left to do a stop with.
"""

import argparse
import asyncio
import contextlib
import random
import time
from pathlib import Path

import uvloop

from bench.harness.report import Figure, latencies, percentile, report
from bench.harness.servers import running_server
from bench.harness.socket_client import BenchSocket
from engine import demo_model
from server.config.settings import DEMO_PACE
from tests.end_to_end.site.harness import Server

PROMPT = "Please tell me a very long story."
WORDS = (
    "No, make it a story about a whale that lives in the harbour and is everybody's best friend."
)
MAX_AFTER_STEP_MS = 10.0
MAX_ELSEWHERE_MS = 100.0
NUM_CHATS = 4
MAX_WAIT_SECONDS = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stop_latency", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--stops", type=int, default=1000, help="of each kind")
    parser.add_argument("--steers", type=int, default=100)
    parser.add_argument("--questions", type=int, default=10, help="in each session")
    parser.add_argument("--pace", type=float, default=DEMO_PACE, help="tokens/s of each answer")
    arguments = parser.parse_args()
    pace = f"{arguments.pace:g}"
    with running_server(arguments.model, PARLEY_WORKERS="2", PARLEY_PACE=pace) as server:
        before = step_figures(server)
        owner = uvloop.run(stops(server, arguments.stops, arguments.questions, elsewhere=False))
        after = step_figures(server)
        other = uvloop.run(stops(server, arguments.stops, arguments.questions, elsewhere=True))
        steered, idle = uvloop.run(steers(server, arguments.steers))
    step_ms = (after[0] - before[0]) / max(1.0, after[1] - before[1]) * 1e3
    report(
        "stop_latency",
        [
            Figure("decode step, mean", step_ms, None, "ms"),
            *latencies("stop at the owner", owner, step_ms + MAX_AFTER_STEP_MS),
            *latencies("stop through another worker", other, MAX_ELSEWHERE_MS),
            *latencies("steer to first text", steered, None),
            *latencies("question in an idle chat to first text", idle, None),
            Figure("steer, over that question, p50", over_ms(steered, idle), step_ms, "ms"),
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


def over_ms(steered: list[float], idle: list[float]) -> float:
    """How much longer the one takes than the other."""
    return (percentile(steered, 50) - percentile(idle, 50)) * 1e3


async def steers(server: Server, count: int) -> tuple[list[float], list[float]]:
    """Seconds to the first text after some words, sent to an answer and after its end, in turns."""
    socket, _ = await connected(server)
    chance = random.Random(0)
    steered: list[float] = []
    idle: list[float] = []
    for number in range(2 * count):
        is_steered = number % 2 == 0
        session = await socket.new_session()
        response = await socket.ask(session, PROMPT)
        await socket.next("response.output_text.delta")
        await asyncio.sleep(chance.uniform(0.0, MAX_WAIT_SECONDS))
        key = {"idempotency_key": f"steer-{number}", "input": WORDS}
        if is_steered:
            started = time.monotonic()
            socket.send("response.steer", previous_response_id=response, **key)
        else:
            socket.send("stop", response_id=response)
            await socket.next("response.done")
            await socket.next("message.updated")
            started = time.monotonic()
            socket.send("response.create", session_id=session, **key)
        created = await socket.next("response.created")
        first = await socket.next("response.output_text.delta")
        (steered if is_steered else idle).append(first.at - started)
        socket.send("stop", response_id=created.body["response"]["id"])  # it may have ended
        await socket.next("response.done")
        socket.send("session.unsubscribe", session_id=session)
        await socket.next("session.unsubscribed")
        socket.forget()
    socket.close()
    return steered, idle


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
