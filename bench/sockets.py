"""`python -m bench.sockets`: a storm of connections, memory of idle sockets, and a pong among them.

All are on one worker. A connection of the storm authenticates, subscribes to a session of its own
and has come when it has been answered. The clients' addresses are 127.0.0.2 and following. While
the idle ones are pinged and their credentials are checked, one more asks for pongs: one that comes
late has waited for a turn of the worker's event loop, or of this process'.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence

import uvloop
from rich.progress import track

from bench.harness.report import Figure, latencies, report
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import BenchSocket
from tests.end_to_end.site.harness import Server

PER_ADDRESS = 1000
MAX_KIB = 20.0
PONG_SECONDS = 30.0  # more than from one ping of the server to the next
PONG_PAUSE_SECONDS = 0.02
MAX_PONG_MS = 10.0
MAX_STORM_SECONDS = 5.0
MAX_CONNECT_MS = 4000.0
REFUSED_SECONDS = 1.0  # the wait that a refusal with 1013 asks for


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sockets", description=__doc__)
    parser.add_argument("--idle", type=int, default=5000, help="sockets that stay")
    parser.add_argument("--storm", type=int, default=1000, help="connections at once")
    arguments = parser.parse_args()
    with running_server(PARLEY_MAX_CONNECTIONS="0") as server:
        figures = uvloop.run(measure(server, arguments.idle, arguments.storm))
    report("sockets", figures)


async def measure(server: Server, num_idle: int, num_storm: int) -> list[Figure]:
    tokens = await user_tokens(server, max(num_idle, num_storm))
    figures = await storm(server, tokens[:num_storm])
    (worker,) = server.children("server.worker")
    await asyncio.sleep(2.0)  # what the storm left is collected
    before = worker.memory_info().rss
    sockets = []
    for start in track(range(0, num_idle, 50), "connecting", transient=True):
        numbers = range(start, min(start + 50, num_idle))
        opening = (opened(server, tokens[number], number) for number in numbers)
        sockets += await asyncio.gather(*opening)
    await asyncio.sleep(2.0)
    kib = (worker.memory_info().rss - before) / num_idle / 1024
    pongs = await pongs_beside(server, tokens[0])
    num_lost = sum(socket.close_code is not None for socket in sockets)
    for socket in sockets:
        socket.close()
    return [
        *figures,
        Figure(f"memory of an idle socket, {num_idle} open", kib, MAX_KIB, "KiB"),
        Figure("idle sockets lost", num_lost, 0, ""),
        *latencies("a pong beside them", pongs, MAX_PONG_MS),
    ]


async def opened(server: Server, token: str, number: int) -> BenchSocket:
    socket = await BenchSocket.open(server, token, f"127.0.0.{2 + number // PER_ADDRESS}")
    socket.send("ping", t=1)
    await socket.next("pong")
    return socket


async def pongs_beside(server: Server, token: str) -> list[float]:
    """How long one socket waits for each pong, in seconds."""
    socket = await BenchSocket.open(server, token)
    seconds = []
    until = time.monotonic() + PONG_SECONDS
    while time.monotonic() < until:
        sent_at = time.monotonic()
        socket.send("ping", t=1)
        seconds.append((await socket.next("pong")).at - sent_at)
        await asyncio.sleep(PONG_PAUSE_SECONDS)
    socket.close()
    return seconds


async def storm(server: Server, tokens: Sequence[str]) -> list[Figure]:
    """All at once; each has a session, which was made before."""
    sessions = []
    for token in tokens:
        maker = await BenchSocket.open(server, token)
        sessions.append(await maker.new_session())
        maker.close()
    seconds: list[float] = []

    num_refused = 0

    async def come(number: int, token: str, session: str) -> BenchSocket:
        nonlocal num_refused
        started = time.monotonic()
        source = f"127.0.0.{2 + number // PER_ADDRESS}"
        try:
            socket = await BenchSocket.open(server, token, source)
        except ConnectionError:  # 1013 or 4429: it waits as long as asked, and comes again
            num_refused += 1
            await asyncio.sleep(REFUSED_SECONDS)
            socket = await BenchSocket.open(server, token, source)
        socket.send("session.subscribe", session_id=session)
        await socket.next("session.subscribed")
        seconds.append(time.monotonic() - started)
        return socket

    started = time.monotonic()
    numbers = range(len(tokens))
    sockets = await asyncio.gather(*map(come, numbers, tokens, sessions))
    total = time.monotonic() - started
    for socket in sockets:
        socket.close()
    return [
        Figure(f"connect storm of {len(tokens)}", total, MAX_STORM_SECONDS, "s"),
        *latencies("a connection of the storm", seconds, MAX_CONNECT_MS),
        Figure("refused at first", num_refused, None, ""),
    ]


if __name__ == "__main__":
    main()
