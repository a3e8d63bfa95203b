"""Attackers who send tiny pieces without end, and come back when they are closed.

`python -m tests.end_to_end.oracle.floods URL TOKEN NAME SECONDS` runs eight of them in a process of
its own, so that a measurement meanwhile is not held up by them, and prints how often one was
closed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.end_to_end.frames.raw import (
    CONTINUATION,
    PING,
    TEXT,
    RawSocket,
    Target,
    frame,
    request,
    upgrade,
)

NUM_ATTACKERS = 8
NUM_PIECES = 300_000  # of each attacker: two seconds of the event loop, if all were parsed
CHUNKED = [("Transfer-Encoding", "chunked")]
CHUNK = b"1\r\n \r\n"


def chunks_of(method: str, path: str) -> Callable[[Target], bytes]:
    return lambda server: request(server, method, path, CHUNKED)


def authorized(server: Target) -> bytes:
    headers = [*CHUNKED, ("Authorization", f"Bearer {server.token}")]
    return request(server, "POST", "/v1/sessions", headers)


# What each attack says first, and then without end.
ATTACKS: dict[str, tuple[Callable[[Target], bytes], bytes]] = {
    "chunks of a GET": (chunks_of("GET", "/healthz"), CHUNK),
    "chunks without a token": (chunks_of("POST", "/v1/sessions"), CHUNK),
    "chunks with a token": (authorized, CHUNK),
    "chunks of 63 bytes": (authorized, b"3f\r\n" + b" " * 63 + b"\r\n"),
    "trailers": (lambda server: authorized(server) + b"0\r\n", b"a:b\r\n"),
    "header lines": (lambda server: request(server)[:-2], b"a:b\r\n"),
    "fragments": (
        lambda server: upgrade(server) + frame(TEXT, b" ", fin=False),
        frame(CONTINUATION, b" ", fin=False),
    ),
    "empty fragments": (
        lambda server: upgrade(server) + frame(TEXT, b"", fin=False),
        frame(CONTINUATION, b"", fin=False),
    ),
    "pings": (upgrade, frame(PING)),
    "messages": (upgrade, frame(TEXT, b"{}")),
    "fragments without a token": (
        lambda server: upgrade(server, {"Authorization": None}) + frame(TEXT, b" ", fin=False),
        frame(CONTINUATION, b" ", fin=False),
    ),
}


async def attack(server: Target, name: str) -> None:
    """Send as much as the server takes; return when it has closed the connection."""
    begin, piece = ATTACKS[name]
    async with RawSocket(server) as socket:
        await socket.send(begin(server))
        sending = asyncio.create_task(socket.send(piece * NUM_PIECES))
        await socket.ended()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


@dataclass
class Site:
    """Where to attack."""

    url: str
    token: str


async def attack_for(server: Target, name: str, seconds: float) -> int:
    """Eight attackers; how often one was closed."""
    end = time.monotonic() + seconds

    async def again_and_again() -> int:
        rounds = 0
        while time.monotonic() < end:
            await attack(server, name)
            rounds += 1
        return rounds

    return sum(await asyncio.gather(*(again_and_again() for _ in range(NUM_ATTACKERS))))


if __name__ == "__main__":
    url, token, name, seconds = sys.argv[1:]
    print(asyncio.run(attack_for(Site(url, token), name, float(seconds))))
