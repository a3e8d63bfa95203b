"""A socket that is full is waited for; one that takes nothing at all is given up."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from server.api.responses.socket import writer as module
from server.api.responses.socket.writer import Writer
from server.api.websocket.wire import Wire
from tests.helpers.patience import PATIENCE


class Socket:
    """Stands for our protocol class: it takes so many frames, then it is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[bytes] = []
        self.on_room: Callable[[], None] | None = None
        self.is_full = asyncio.Event()
        self.unsent = 1000  # bytes
        self.drained = 0  # of them, at each look
        self.transport = self

    def write_frame(self, payload: bytes) -> bool:
        if len(self.sent) == self.room:
            self.is_full.set()
            return False
        self.sent.append(payload)
        return True

    @property
    def can_write(self) -> bool:
        return len(self.sent) < self.room

    def write_frames(self, payloads: Sequence[bytes]) -> None:
        self.sent += payloads

    def get_write_buffer_size(self) -> int:
        self.unsent -= self.drained
        return self.unsent

    def drain(self, room: int) -> None:
        self.room += room
        assert self.on_room is not None
        self.on_room()


def writer_of(socket: Socket, give_up: Callable[[], None] = lambda: None) -> Writer:
    return Writer(cast("Wire", socket), give_up)


async def test_frames_leave_in_order_and_wait_for_room() -> None:
    socket = Socket(2)
    writer = writer_of(socket)
    first = asyncio.create_task(writer.send([b"1", b"2", b"3"]))
    second = asyncio.create_task(writer.send([b"4"]))
    await socket.is_full.wait()
    assert socket.sent == [b"1", b"2"] and not first.done()
    socket.drain(2)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(first, second)
    assert socket.sent == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("drained", [0, 1])
async def test_a_socket_is_given_up_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, drained: int
) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.01)
    socket, given_up = Socket(0), asyncio.Event()
    socket.drained = drained
    sending = asyncio.create_task(writer_of(socket, given_up.set).send([b"1"]))
    looked = asyncio.Event()
    if drained:  # until it takes nothing any more, either
        original: Any = socket.get_write_buffer_size

        def look() -> int:
            looked.set()
            return int(original())

        # In the place of the method, so that the test sees each look at the buffer.
        socket.get_write_buffer_size = look  # type: ignore[method-assign]
        async with asyncio.timeout(PATIENCE):
            await looked.wait()
        assert not given_up.is_set()
        socket.drained = 0
    async with asyncio.timeout(PATIENCE):
        await given_up.wait()
    assert not sending.done()
    sending.cancel()


async def test_what_leaves_in_the_call_that_brings_it_overtakes_nobody_who_waits() -> None:
    socket = Socket(3)
    writer = writer_of(socket)
    assert writer.is_open()
    writer.write([b"1", b"2"])
    waiting = asyncio.create_task(writer.send([b"3", b"4"]))
    await socket.is_full.wait()
    assert not writer.is_open()
    socket.room += 1  # which only those who wait hear of
    assert not writer.is_open()
    socket.drain(0)
    async with asyncio.timeout(PATIENCE):
        await waiting
    assert socket.sent == [b"1", b"2", b"3", b"4"]
