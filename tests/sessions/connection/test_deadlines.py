"""`deadlines`: a loop that was blocked reads what has come before it calls it late."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass

import pytest
import uvloop

from sessions.connection.deadlines import before_deadline, within

SECONDS = 0.05


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    """Of each loop: the one looks at its sockets first, the other at its timers."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None)


async def block_and_read(*, bytes_sent: bool) -> bytes:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)

    def block() -> None:
        time.sleep(3 * SECONDS)
        theirs.sendall(b"reply" if bytes_sent else b"")

    asyncio.get_running_loop().call_soon(block)
    try:
        async with within(SECONDS):
            return await reader.readexactly(5)
    finally:
        writer.close()
        theirs.close()


def test_what_came_while_the_loop_was_blocked_is_in_time(runner: asyncio.Runner) -> None:
    with runner:
        assert runner.run(block_and_read(bytes_sent=True)) == b"reply"


def test_what_did_not_come_is_late(runner: asyncio.Runner) -> None:
    with runner, pytest.raises(TimeoutError):
        runner.run(block_and_read(bytes_sent=False))


@dataclass
class Reply:
    deadline: float


async def test_each_of_several_has_its_own_deadline() -> None:
    loop = asyncio.get_running_loop()
    awaited = [Reply(loop.time() + SECONDS * n) for n in (1, 3)]
    started = loop.time()
    with pytest.raises(TimeoutError):
        async with before_deadline(lambda: awaited[0] if awaited else None):
            loop.call_soon(awaited.pop, 0)
            await loop.create_future()
    assert loop.time() - started >= 3 * SECONDS


async def test_nothing_is_watched_after_the_block() -> None:
    async with within(SECONDS):
        pass
    await asyncio.sleep(2 * SECONDS)  # a timer that was left would cancel this task
