"""Random and damaged HTTP, in random segments, against `HttpProtocol`.

For every input: no answer of 5xx, nothing but HTTP comes back, the connection ends, nobody else
notices, and no callback of the event loop takes long.
"""

from __future__ import annotations

import asyncio
import random
import re

from tests.end_to_end.frames.raw import RawSocket, request, upgrade
from tests.fuzz.damage import cut, damaged
from tests.fuzz.driver import Finding, Target, drive
from tests.fuzz.site import Site, serving, serving_patiently

LEFT_OPEN_DEADLINES = 30  # of a site: none of its connections lasts so long
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
PATHS = ("/", "/read", "/much", "/v1/ws", "/read?" + "x" * 20_000, "*", "//", "/%00", "http://x/")
METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "PRI", "GE T", "X" * 5000)
HEADERS = (
    ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "gzip, chunked"),
    ("Content-Length", "5"),
    ("Content-Length", "5, 5"),
    ("Content-Length", "99999999999999999999"),
    ("Content-Length", "-1"),
    ("Expect", "100-continue"),
    ("Connection", "close"),
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Upgrade", "h2c"),
    ("Range", "bytes=0-,1-"),
    ("X-Long", "x" * 9000),
    ("X-Fold", "a\r\n b"),
    ("", ""),
)


def body(rng: random.Random) -> bytes:
    """Chunks of any size, with or without an end, or plain bytes."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.choice((0, 5, 1000, 300_000)))
    parts = []
    size = rng.choice((0, 1, 2, 63, 64, 511, 512, 5000, 70_000))
    for _ in range(rng.choice((1, 3, 200, 300, 60_000)) if size < 600 else 3):
        extension = rng.choice((b"", b"", b";x=y", b";" + b"x" * 300))
        parts.append(b"%x%s\r\n%s\r\n" % (size, extension, b" " * size))
    ends = (b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"0\r\n" + b"a:b\r\n" * 20_000, b"", b"-1\r\n")
    return b"".join(parts) + rng.choice(ends)


def conversation(site: Site, rng: random.Random) -> bytes:
    """One to four requests on a connection."""
    said = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        headers = rng.sample(HEADERS, rng.choice((0, 1, 1, 2, 4)))
        if rng.random() < 0.05:
            headers += [("A", "b")] * rng.choice((150, 5000))
        kind = rng.random()
        if kind < 0.3:  # in order but for its body
            path = rng.choice(PATHS[:3])
            said.append(request(site, "POST", path, HEADERS[:1], body(rng)))
        elif kind < 0.4:
            said.append(upgrade(site, path="/bye"))
        else:
            said.append(request(site, rng.choice(METHODS), rng.choice(PATHS), headers, body(rng)))
    return damaged(rng, b"".join(said))


async def attack(site: Site, rng: random.Random, sent: bytes) -> None:
    """One connection. Raises `Finding`."""
    async with RawSocket(site) as socket:
        sending = asyncio.create_task(send(socket, cut(rng, sent)))
        got = await socket.rest(LEFT_OPEN_DEADLINES * site.deadline_seconds)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    if got is None:
        raise Finding("the connection was left open", sent)
    statuses = [int(status) for status in STATUS.findall(got)]
    if any(status >= 500 for status in statuses):
        raise Finding(f"answered {statuses}", sent)
    if got and not got.startswith(b"HTTP/1.1 "):
        raise Finding(f"answered {got[:100]!r}", sent)


async def send(socket: RawSocket, pieces: list[bytes]) -> None:
    for piece in pieces:
        await socket.send(piece)
        await asyncio.sleep(0)


async def bystand(site: Site) -> None:
    """Somebody else's request is answered as ever."""
    async with RawSocket(site) as socket:
        answer = await socket.ask(request(site, "POST", "/read", [("Content-Length", "3")], b"abc"))
        if (answer.status, answer.body) != (200, b"3"):
            raise Finding(f"a bystander got {answer}", b"")


def run(seconds: float, seed: int) -> str:
    """Attack for so long; raises AssertionError with seed and bytes. Returns a line of figures."""
    target = Target("http", serving, conversation, attack, bystand, serving_patiently)
    return drive(target, seconds, seed)
