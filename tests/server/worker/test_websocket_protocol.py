"""Deadlines and limits of `WebSocketProtocol`, on a real uvicorn with a small application."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import pytest
from websockets.frames import Frame

from server.protocol.client_frames import MAX_MESSAGE_BYTES
from server.protocol.close_codes import CloseCode
from server.worker import websocket_protocol
from server.worker.websocket.framing import (
    IDLE_FRAMES_PER_S,
    MAX_FRAMES_AFTER_CLOSE,
    SMALL_FRAGMENT_BYTES,
    Framing,
)
from server.worker.websocket.keepalive import PINGS_PER_TURN, Keepalive
from server.worker.websocket.waiting import Inbox, Switch
from server.worker.websocket_protocol import UNRULY, WEBSOCKET_PIECE_BYTES, WebSocketProtocol
from tests.end_to_end.frames.raw import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    close_frame,
    frame,
    upgrade,
)
from tests.helpers.patience import PATIENCE
from tests.server.worker.target import Target, handed_over, late_writes

SOON = 0.1  # seconds, for deadlines that a test waits for
IN_TIME = 1.5  # for those that it must not miss, also on a busy machine
BURST = 2 * IDLE_FRAMES_PER_S
POLITE_CLOSE_SECONDS = 10.0  # that uvicorn waits for the client's own close frame
EMPTY_PARTS = frame(TEXT, b"", fin=False) + frame(CONTINUATION, b"", fin=False) * (BURST - 1)
IDLE = {"pings": frame(PING, b"x" * 125) * BURST, "pongs": frame(PONG) * BURST}


@pytest.mark.parametrize("size", [125, 126, 65535, 65536])
async def test_a_frame_past_all_layers_arrives_whole(target: Target, size: int) -> None:
    text = '{"type": "direct", "text": ""}'
    text = text[:-2] + "x" * (size - len(text)) + text[-2:]
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, text.encode()))
        assert await socket.next("direct") == json.loads(text)


async def test_several_frames_past_all_layers_arrive_one_by_one(target: Target) -> None:
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"several"))
        assert [len((await socket.next("several"))["text"]) for _ in range(2)] == [1, 70_000]


async def test_a_full_socket_takes_no_frame_past_all_layers_and_loses_none(target: Target) -> None:
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"jam"))
        num_written = 0
        while (body := await socket.next("jam", "echo"))["type"] == "jam":
            num_written += 1
        assert body["length"] == num_written > 0


async def test_an_ended_websocket_takes_no_frame_past_all_layers(target: Target) -> None:
    late_writes.clear()
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(CLOSE, b"\x03\xe8"))
        assert await socket.closed() == (1000, "")
    assert late_writes == [False]


async def test_an_application_that_has_returned_goes_on_with_what_it_has_handed_over(
    target: Target,
) -> None:
    async with RawSocket(target) as socket:
        assert (await socket.ask(upgrade(target, path="/over"))).status == 101
        await socket.send(frame(TEXT, b"hello"))
        assert (await socket.next("echo"))["length"] == 5
        handed_over[-1].wake()
        assert (await socket.next("echo"))["kind"] == "parley.wake"
        await socket.send(close_frame(1000, b"bye"))
        assert await socket.closed() == (1000, "bye")


async def test_an_idle_websocket_holds_no_parser_and_nothing_of_its_handshake(
    target: Target,
) -> None:
    async with RawSocket(target) as socket:
        assert (await socket.ask(upgrade(target, path="/over"))).status == 101
        await socket.send(frame(TEXT, b"hello"))
        await socket.next("echo")
        wire = handed_over[-1]
        assert not any(hasattr(wire, name) for name in ("scope", "request", "response"))
        assert not any(hasattr(wire.conn, name) for name in ("reader", "parser"))
        assert not vars(wire) and not vars(wire.conn)  # a new attribute of uvicorn's wants a slot
        await socket.send(frame(TEXT, b"hello")[:-1])
        await socket.send(frame(TEXT, b"hello")[-1:] + frame(TEXT, b"x", fin=False))
        assert (await socket.next("echo"))["length"] == 5
        await socket.send(frame(CONTINUATION, b"y"))
        assert (await socket.next("echo"))["length"] == 2


@pytest.mark.row("B14")
@pytest.mark.parametrize("idle", [*IDLE.values(), EMPTY_PARTS], ids=[*IDLE, "empty parts"])
async def test_control_frames_and_empty_fragments_beyond_their_burst_close_with_4429(
    target: Target, idle: bytes
) -> None:
    ending = frame(CONTINUATION, b"hello") if idle is EMPTY_PARTS else frame(TEXT, b"hello")
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(idle + ending)
        assert (await socket.next("echo"))["length"] == 5
        await socket.send(idle)
        assert await socket.closed() == (4429, "rate_limited;retry_after_ms=5000")


@pytest.mark.row("B12")
@pytest.mark.parametrize("size", [1, SMALL_FRAGMENT_BYTES - 1])
async def test_small_fragments_of_any_size_count_towards_the_rate(
    target: Target, size: int
) -> None:
    part = frame(CONTINUATION, b"x" * size, fin=False)
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"x", fin=False) + part * (200_000 // size))
        assert await socket.closed() == (4429, "rate_limited;retry_after_ms=5000")


@pytest.mark.row("B12")
async def test_the_largest_message_may_come_in_fragments_that_are_not_small(
    target: Target,
) -> None:
    part = b"x" * SMALL_FRAGMENT_BYTES
    num_parts = MAX_MESSAGE_BYTES // len(part)
    parts = [frame(TEXT, part, fin=False)] + [frame(CONTINUATION, part, fin=False)] * num_parts
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(b"".join(parts[:num_parts]) + frame(CONTINUATION))
        assert (await socket.next("echo"))["length"] == MAX_MESSAGE_BYTES


async def test_no_more_is_parsed_at_once_than_a_piece_holds(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read may bring thousands of frames, and each of them takes time of everybody."""
    waiting: list[int] = []
    receive = WebSocketProtocol.receive

    async def counted(self: WebSocketProtocol) -> object:
        waiting.append(self.queue.qsize())
        return await receive(self)

    monkeypatch.setattr(WebSocketProtocol, "receive", counted)
    whole, num = frame(TEXT, b"x"), 20_000
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(whole * num)
        for _ in range(num):  # and none is lost
            assert (await socket.next("echo"))["length"] == 1
    assert 1 < max(waiting) <= WEBSOCKET_PIECE_BYTES // len(whole) + 1


async def test_a_close_frame_between_two_fragments_is_answered_as_one(target: Target) -> None:
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"x", fin=False) + close_frame(1000, b"bye"))
        assert await socket.closed() == (1000, "bye")


async def test_a_close_frame_that_comes_with_many_messages_is_answered(target: Target) -> None:
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"x") * 5000 + close_frame(1000))
        assert await socket.closed() == (1000, "")


async def test_a_close_frame_that_comes_with_more_than_is_read_ends_without_a_reset(
    target: Target,
) -> None:
    def closes_and_goes_on_sending() -> bytes:
        address = urlsplit(target.url)
        with socket.create_connection((address.hostname, address.port), PATIENCE) as client:
            client.sendall(upgrade(target))
            while not client.recv(1 << 16).endswith(b"\r\n\r\n"):
                pass
            client.sendall(close_frame(1000, b"bye") * 200_000)
            return b"".join(iter(lambda: client.recv(1 << 16), b""))

    assert await asyncio.to_thread(closes_and_goes_on_sending) == b"\x88\x05\x03\xe8bye"


async def test_a_ping_in_one_packet_with_what_is_closed_for_is_no_error_of_ours(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"\xff") + frame(PING) + frame(TEXT, b"\xff"))
        assert (await socket.closed())[0] == 1007
    assert not caplog.records


@pytest.mark.row("B14")
async def test_frames_after_our_own_close_are_parsed_for_a_while_and_then_no_more(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    recv_frame = Framing.recv_frame

    def counted(self: Framing, frame: Frame) -> None:
        parsed.append(frame.opcode)
        recv_frame(self, frame)

    monkeypatch.setattr(Framing, "recv_frame", counted)
    async with RawSocket(target) as socket:
        assert (await socket.ask(upgrade(target, path="/bye1000"))).status == 101
        assert await socket.closed() == (1000, "")
        await socket.send(frame(TEXT, b"x") * 200_000)
        await socket.ended()
    assert len(parsed) == MAX_FRAMES_AFTER_CLOSE + 1


@pytest.mark.parametrize("code", UNRULY)
async def test_who_is_closed_for_bad_manners_is_cut_though_it_never_answers_the_close(
    target: Target, code: CloseCode
) -> None:
    async with RawSocket(target) as socket:
        assert (await socket.ask(upgrade(target, path=f"/bye{code}"))).status == 101
        assert await socket.closed() == (code, "")
        async with asyncio.timeout(POLITE_CLOSE_SECONDS / 2):
            await socket.ended()


ONE_FRAME = frame(TEXT, bytes(100))[:-1]
TWO_PARTS = frame(TEXT, b"x", fin=False) + frame(CONTINUATION, b"x", fin=False)
WITH_PINGS = frame(TEXT, b"x", fin=False) + frame(PING) * 3


@pytest.mark.row("B12")
@pytest.mark.parametrize(
    "data", [ONE_FRAME[:1], ONE_FRAME[:2], ONE_FRAME, TWO_PARTS, WITH_PINGS, WITH_PINGS[:-2]]
)
async def test_a_message_that_does_not_end_closes_with_4400(
    target: Target, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(websocket_protocol, "MESSAGE_SECONDS", SOON)
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, b"whole") + data)
        assert await socket.closed() == (4400, "message_timeout")


@pytest.mark.row("B12")
async def test_messages_that_end_in_time_may_come_for_ever(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_protocol, "MESSAGE_SECONDS", IN_TIME)
    whole = frame(TEXT, b"hello")
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await socket.send(whole[:4])
        for _ in range(8):  # never between two frames, and longer than one message may take
            await asyncio.sleep(IN_TIME / 5)
            await socket.send(whole[4:] + whole[:4])
            assert (await socket.next("echo"))["length"] == 5


@pytest.mark.row("B12")
@pytest.mark.parametrize("path", ["/slow", "/busy"])
async def test_a_message_that_the_application_keeps_waiting_is_not_late(
    target: Target, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(websocket_protocol, "MESSAGE_SECONDS", IN_TIME)
    whole = frame(TEXT, b"hello")
    async with RawSocket(target) as socket:
        assert (await socket.ask(upgrade(target, path=path))).status == 101
        await socket.send(whole + whole[:4])
        await asyncio.sleep(IN_TIME / 5)
        await socket.send(whole[4:])
        for _ in range(2):
            assert (await socket.next("echo"))["length"] == 5


async def test_an_inbox_is_first_in_first_out_and_wakes_who_waits() -> None:
    inbox = Inbox()
    assert inbox.empty()
    getting = asyncio.ensure_future(inbox.get())
    await asyncio.sleep(0)
    inbox.put_nowait(1)
    inbox.put_nowait(2)
    async with asyncio.timeout(PATIENCE):
        assert (await getting, await inbox.get()) == (1, 2)
    getting = asyncio.ensure_future(inbox.get())
    await asyncio.sleep(0)
    inbox.put_nowait(3)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert inbox.qsize() == 1  # a get that is cancelled takes nothing


async def test_a_switch_lets_all_go_on_who_wait_for_it() -> None:
    switch = Switch()
    waits = [asyncio.ensure_future(switch.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    switch.set()
    switch.clear()  # before they had their turn: they wait on
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits[1:])
    switch.set()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waits[1:])
        await switch.wait()
    assert switch.is_set()


class Pinged:
    """Stands for a protocol that is kept alive; its clock is the test's."""

    def __init__(self, clock: "Clock") -> None:
        self.loop = cast("asyncio.AbstractEventLoop", clock)  # what a `Keepalive` calls of it
        self.ping_sent_at = clock.now
        self.pinged_at: list[float] = []
        self.lives = True

    def keep_alive(self) -> bool:
        self.pinged_at.append(self.loop.time())
        self.ping_sent_at = self.loop.time()
        return self.lives


class Clock:
    """Stands for the loop's: `run_until` calls what is due, and notes how many each call pinged."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> object:
        self.due.append((when, callback))
        return object()

    def run_until(self, when: float) -> int:
        """Returns how many calls that took."""
        num_calls = 0
        while self.due and self.due[0][0] <= when:
            assert len(self.due) == 1  # one timer for all
            due, callback = self.due.pop()
            self.now = max(self.now, due)
            callback()
            num_calls += 1
        self.now = when
        return num_calls


def test_each_is_pinged_once_in_the_time_that_is_set_by_one_timer_for_all() -> None:
    clock, keepalive = Clock(), Keepalive(20.0)
    first = Pinged(clock)
    keepalive.add(first)
    clock.run_until(5.0)
    second = Pinged(clock)
    keepalive.add(second)
    clock.run_until(50.0)
    assert (first.pinged_at, second.pinged_at) == ([20.0, 40.0], [25.0, 45.0])
    first.lives = False
    clock.run_until(90.0)
    assert (first.pinged_at[2:], second.pinged_at[2:]) == ([60.0], [65.0, 85.0])
    second.lives = False
    clock.run_until(200.0)
    assert not clock.due
    third = Pinged(clock)
    keepalive.add(third)
    clock.run_until(220.0)
    assert third.pinged_at == [220.0]


def test_thousands_that_came_at_once_are_pinged_in_many_turns() -> None:
    clock, keepalive = Clock(), Keepalive(20.0)
    crowd = [Pinged(clock) for _ in range(10 * PINGS_PER_TURN)]
    for one in crowd:
        keepalive.add(one)
    assert clock.run_until(20.0) == 10
    assert all(one.pinged_at == [20.0] for one in crowd)
    assert clock.run_until(40.0) == 10


@pytest.mark.parametrize("target", [SOON], indirect=True)
async def test_who_answers_pings_stays_and_who_does_not_is_closed_with_1011(
    target: Target,
) -> None:
    async with RawSocket(target) as socket:
        await socket.upgrade()
        for _ in range(3):
            await socket.send(frame(PONG, await socket.next_ping()))
        assert await socket.closed() == (1011, "keepalive ping timeout")
