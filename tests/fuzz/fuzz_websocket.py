"""Random and damaged websocket frames, in random segments, against `WebSocketProtocol`.

For every input: the connection ends with a close frame, nobody else notices, and no callback of
the event loop takes long.
"""

from __future__ import annotations

import asyncio
import random

from tests.end_to_end.frames.raw import (
    BINARY,
    CLOSE,
    CONTINUATION,
    LOST,
    PING,
    PONG,
    TEXT,
    RawSocket,
    close_frame,
    frame,
    upgrade,
)
from tests.fuzz.damage import cut, damaged
from tests.fuzz.driver import Finding, Target, drive
from tests.fuzz.fuzz_http import send
from tests.fuzz.site import MESSAGE, Site, serving, serving_patiently

OPCODES = (TEXT, TEXT, TEXT, CONTINUATION, CONTINUATION, BINARY, PING, PONG, CLOSE, 0x3, 0xB)
SIZES = (0, 1, 2, 5, 125, 126, 1023, 1024, 65_535, 65_536, 600_000)
MANY = (1, 1, 1, 2, 50, 150, 30_000)


def frames(site: Site, rng: random.Random) -> bytes:
    """A few kinds of frames, each perhaps many times."""
    said = []
    for _ in range(rng.choice((1, 2, 5))):
        size = rng.choice(SIZES)
        payload = rng.choice((b"x" * size, rng.randbytes(size), "€".encode() * (size // 3)))
        one = frame(
            rng.choice(OPCODES),
            payload,
            fin=rng.random() < 0.6,
            rsv=rng.choice((0, 0, 0, 0, 4)),
            masked=rng.random() < 0.97,
            announced=rng.choice((None, None, None, None, None, 2**63 - 1, 2**64 - 1, 70)),
        )
        said.append(one * (rng.choice(MANY) if len(one) < 200 else 1))
    return damaged(rng, b"".join(said))


async def attack(site: Site, rng: random.Random, sent: bytes) -> None:
    """One connection. Raises `Finding`."""
    async with RawSocket(site) as socket:
        if rng.random() < 0.2:  # in one packet with the handshake
            await socket.send(upgrade(site) + sent)
            answer = await socket.answer()
        else:
            answer = await socket.upgrade()
            sending = asyncio.create_task(send(socket, cut(rng, sent)))
        if answer.status != 101:
            raise Finding(f"the handshake was answered {answer.status}", sent)
        closing = asyncio.create_task(socket.closed(seconds=20 * site.deadline_seconds))
        await asyncio.wait([closing], timeout=site.deadline_seconds)
        while not closing.done():  # what was sent may have been the beginning of a message
            await socket.send(close_frame(1000))
            await asyncio.wait([closing], timeout=site.deadline_seconds)
        if "sending" in locals():
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        try:
            code, _ = closing.result()
        except TimeoutError:
            raise Finding("the connection was left open", sent) from None
    if code == LOST:
        raise Finding("the connection ended without a close frame", sent)


async def bystand(site: Site) -> None:
    """Somebody else's message is echoed as ever."""
    async with RawSocket(site) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, MESSAGE.encode()))
        if (await socket.next("echo"))["text"] != "hello":
            raise Finding("a bystander's message was changed", b"")


def run(seconds: float, seed: int) -> str:
    """Attack for so long; raises AssertionError with seed and bytes. Returns a line of figures."""
    target = Target("websocket", serving, frames, attack, bystand, serving_patiently)
    return drive(target, seconds, seed)
