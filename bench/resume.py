"""`python -m bench.resume`: how long the server takes to give a reconnecting client its answer.

The client has lost everything: on a new connection it subscribes and asks for an answer of 2,000
tokens from its beginning. Measured from its frame to the last of the reply, less a ping's round
trip: once for an answer that has ended, once for one that is being written, on its own worker.
"""

import argparse
import time
from typing import Any

import uvloop

from bench.harness.report import Figure, latencies, percentile, report
from bench.harness.servers import running_server
from bench.harness.socket_client import BenchSocket
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

MAX_MS = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.resume", description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000, help="length of the answer")
    parser.add_argument("--times", type=int, default=100, help="reconnects of each kind")
    arguments = parser.parse_args()
    with running_server() as server:
        figures = uvloop.run(measure(server, arguments.tokens, arguments.times))
    report("resume", figures)


async def measure(server: Server, num_tokens: int, num_times: int) -> list[Figure]:
    client = await BenchSocket.open(server)
    session = await client.new_session()
    settings = {"temperature": 0, "max_output_tokens": num_tokens}
    response = await client.ask(session, oracle_word(0), **settings)
    await client.next("response.done")
    ended = [await resume(server, session, response, num_tokens) for _ in range(num_times)]

    settings["max_output_tokens"] = 16_000
    long = await client.ask(session, oracle_word(0), **settings)
    while num_characters(client, long) < num_tokens * len(oracle_word(0)):
        await client.next("response.output_text.delta")
    live = [await resume(server, session, long, num_tokens) for _ in range(num_times)]
    client.send("stop", response_id=long)
    await client.next("response.done")
    client.close()
    length = f"{num_tokens} tokens"
    return [
        *latencies(f"an ended answer of {length}", ended, MAX_MS),
        *latencies(f"a running answer of {length} and more", live, MAX_MS),
    ]


def num_characters(client: BenchSocket, response: str) -> int:
    """How much of an answer has come; the last delta says where it ends."""
    marker = response.encode()
    for found in reversed(client.received):
        if b"output_text.delta" in found.payload and marker in found.payload:
            body = found.body
            return int(body["text_offset"]) + len(body["delta"])
    return 0


async def resume(server: Server, session: str, response: str, num_tokens: int) -> float:
    """Seconds until all the text of the answer is there again."""
    socket = await BenchSocket.open(server)
    round_trip = percentile([await ping(socket) for _ in range(5)], 50)
    place = {"response_id": response, "fence": 1, "after_sequence_number": 0}
    started = time.monotonic()
    socket.send("session.subscribe", session_id=session, responses=[place])
    wanted = oracle_answer(0, num_tokens)
    texts: dict[str, str] = {}
    while len(texts.get(response, "")) < len(wanted):
        found = await socket.next("response.output_text.delta", "response.output_text.snapshot")
        take(texts, found.body)
    seconds = found.at - started
    assert texts[response].startswith(wanted)
    socket.close()
    return seconds - round_trip


def take(texts: dict[str, str], body: dict[str, Any]) -> None:
    """Apply a delta or a part of a snapshot."""
    response = body["response_id"]
    if "delta" in body:
        texts[response] = texts.get(response, "") + body["delta"]
    else:
        texts[response] = ("" if body["part"] == 1 else texts[response]) + body["text"]


async def ping(socket: BenchSocket) -> float:
    started = time.monotonic()
    socket.send("ping", t=1)
    return (await socket.next("pong")).at - started


if __name__ == "__main__":
    main()
