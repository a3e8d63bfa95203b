"""Deadlines and limits of the protocol classes, on a real uvicorn with a small application."""

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send
from websockets.frames import Frame

from server.protocol.client_frames import MAX_MESSAGE_BYTES
from server.protocol.close_codes import CloseCode
from server.worker import http_protocol, lingering, websocket_protocol
from server.worker.bounded_h11 import FREE_CHUNKS, BoundedConnection
from server.worker.http_protocol import HttpProtocol
from server.worker.lingering import BAD_REQUEST
from server.worker.uvicorn_server import Server, uvicorn_config
from server.worker.websocket_protocol import (
    IDLE_FRAMES_PER_S,
    MAX_FRAMES_AFTER_CLOSE,
    SMALL_FRAGMENT_BYTES,
    UNRULY,
    WEBSOCKET_PIECE_BYTES,
    Framing,
    WebSocketProtocol,
)
from tests.end_to_end.clients.raw import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    close_frame,
    frame,
    request,
    upgrade,
)
from tests.helpers.patience import PATIENCE

SOON = 0.1  # seconds, for deadlines that a test waits for
IN_TIME = 1.5  # for those that it must not miss, whatever else the machine does
BURST = 2 * IDLE_FRAMES_PER_S
POLITE_CLOSE_SECONDS = 10.0  # that uvicorn waits for the client's own close frame
BIG = 16 * 2**20  # more than the buffers between two sockets hold
late_writes: list[bool] = []  # whether frames could be written to websockets that had ended


@dataclass
class Target:
    url: str
    token: str = "a-token-that-no-answer-may-hold"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """A websocket that echoes; paths that read nothing, say much, or refuse."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{kind}"
            await send({"type": f"lifespan.{kind}.complete"})
    elif scope["type"] == "websocket":
        await _echo(scope, receive, send)
    else:
        status = 413 if scope["path"] == "/refuse" else 200
        while scope["path"] == "/read" and (await receive()).get("more_body", False):
            pass
        body = bytes(BIG) if scope["path"] == "/big" else b"short"
        headers = [(b"content-length", str(len(body)).encode())]
        if status == 413:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for start in range(0, len(body), 65536):
            part = body[start : start + 65536]
            more = start + 65536 < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    write = scope["extensions"]["parley.transport"]["write"]
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept", "subprotocol": "chat.v1"})
            if scope["path"] == "/slow":
                await asyncio.sleep(2 * websocket_protocol.MESSAGE_SECONDS)
            elif scope["path"].startswith("/bye"):
                code = int(scope["path"].removeprefix("/bye"))
                await send({"type": "websocket.close", "code": code})
            elif scope["path"] == "/busy":  # receives in the turn in which the deadline falls due
                await asyncio.sleep(websocket_protocol.MESSAGE_SECONDS / 2)
                # It is the loop that must be held up: deadlines fall due, and nothing is read.
                time.sleep(websocket_protocol.MESSAGE_SECONDS)  # noqa: ASYNC251
                await asyncio.sleep(0)
        elif message["text"].startswith('{"type": "direct"'):
            assert write(message["text"].encode())
        elif message["text"] == "jam":
            count = 0
            while write(b'{"type":"jam","text":"%s"}' % (b"x" * 10_000)):
                count += 1
            await send({"type": "websocket.send", "text": f'{{"type":"echo","length":{count}}}'})
        else:
            echo = {"type": "echo", "length": len(message["text"])}
            await send({"type": "websocket.send", "text": json.dumps(echo)})
    late_writes.append(write(b"too late"))


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    config = uvicorn_config(app, ping_seconds=20.0)
    config.host, config.port = "127.0.0.1", 0
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    await server.ready.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Target(f"http://127.0.0.1:{port}")
    server.should_exit = True
    await serving


async def drip(socket: RawSocket, data: bytes) -> None:
    """A byte every now and then: each comes long before a deadline between two bytes would."""
    for place in range(len(data)):
        await socket.send(data[place : place + 1])
        await asyncio.sleep(SOON / 10)


# ---- HTTP ---------------------------------------------------------------------------------------


@pytest.mark.row("B6")
async def test_a_connection_that_says_nothing_is_closed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", SOON)
    async with RawSocket(target) as socket:
        assert (await socket.answer()).status == 0


@pytest.mark.row("B6")
@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: x", b"GET /" + b"x" * 1000])
async def test_half_a_head_is_answered_408_however_it_drips(
    target: Target, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", SOON)
    async with RawSocket(target) as socket:
        dripping = asyncio.create_task(drip(socket, head))
        answer = await socket.answer()
        assert (answer.status, answer.body) == (408, b"")
        await socket.ended()
        dripping.cancel()


@pytest.mark.row("B6")
async def test_the_head_of_a_second_request_has_a_deadline_of_its_own(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", IN_TIME)
    async with RawSocket(target) as socket:
        assert (await socket.ask(request(target))).status == 200
        await asyncio.sleep(2 * IN_TIME)  # kept alive: no request is due
        assert (await socket.ask(request(target))).status == 200
        assert (await socket.ask(b"GET / HTTP/1.1\r\n")).status == 408


@pytest.mark.row("B6")
@pytest.mark.parametrize(
    ("part", "status"),
    [
        (b"GET / HTTP/1.1\r\n", 408),
        (b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", 0),
    ],
    ids=["head", "body"],
)
async def test_a_request_that_began_in_the_packet_of_another_has_its_own_deadline(
    target: Target, monkeypatch: pytest.MonkeyPatch, part: bytes, status: int
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", SOON)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", SOON)
    monkeypatch.setattr(lingering, "LINGER_SECONDS", SOON)
    async with RawSocket(target) as socket:
        assert (await socket.ask(request(target) + part)).status == 200
        assert (await socket.answer()).status == status
        await socket.ended()


@pytest.mark.row("P18")
async def test_a_body_that_nobody_reads_does_not_hold_its_connection(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", SOON)
    monkeypatch.setattr(lingering, "LINGER_SECONDS", SOON)
    async with RawSocket(target) as socket:
        head = request(target, "POST", headers=[("Content-Length", "100000")])
        assert (await socket.ask(head)).status == 200
        dripping = asyncio.create_task(drip(socket, bytes(100_000)))
        await socket.ended()
        dripping.cancel()


@pytest.mark.row("P18")
async def test_a_client_that_reads_nothing_of_its_answer_is_cut(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_SECONDS", SOON)
    address = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=4096)
    writer.write(request(target, path="/big"))
    await asyncio.sleep(3 * SOON)  # what comes beyond the reader's limit stays in the kernel
    num_received = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            num_received += len(data)
    assert 0 < num_received < BIG
    writer.transport.abort()


async def last_words(target: Target, data: bytes) -> bytes:
    """All that is said to a client that goes on sending; a reset fails."""
    address = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(data)
    answer = await reader.read()
    writer.write(bytes(100_000))
    await asyncio.sleep(SOON)
    assert reader.exception() is None
    writer.transport.abort()
    return answer


@pytest.mark.row("P18")
async def test_a_client_that_is_still_sending_can_read_why_it_is_refused(
    target: Target,
) -> None:
    head = request(target, "POST", "/refuse", [("Content-Length", str(BIG))])
    answer = await last_words(target, head + bytes(BIG))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"short")


@pytest.mark.row("B5")
@pytest.mark.parametrize("size", [64_000, 10_000_000])
async def test_a_client_whose_head_is_too_long_can_read_why_it_is_refused(
    target: Target, size: int
) -> None:
    answer = await last_words(target, b"GET / HTTP/1.1\r\nX: " + b"x" * size)
    assert answer.startswith(b"HTTP/1.1 431 ")


CHUNKED = [("Transfer-Encoding", "chunked")]


async def test_a_body_that_does_not_parse_is_refused_and_not_asked_for(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    head = request(target, "POST", "/read", [*CHUNKED, ("Expect", "100-continue")])
    answer = await last_words(target, head + b"no number of bytes\r\n")
    assert answer == BAD_REQUEST
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


FLOODS = {
    "chunks": b"1\r\n \r\n" * 400_000,
    "chunks with extensions": (b"1;" + b"x" * 500 + b"\r\n \r\n") * 4000,
    "trailers": b"0\r\n" + b"a:b\r\n" * 400_000,
}


@pytest.mark.row("B6")
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/read", 400)])
async def test_a_flood_of_small_pieces_is_cut_and_parsed_no_further(
    target: Target, monkeypatch: pytest.MonkeyPatch, flood: bytes, path: str, status: int
) -> None:
    """Whether its request is answered already, or waits for the body."""
    num_parsed = 0
    next_event = BoundedConnection.next_event

    def counted(self: BoundedConnection) -> object:
        nonlocal num_parsed
        num_parsed += 1
        return next_event(self)

    monkeypatch.setattr(BoundedConnection, "next_event", counted)
    async with RawSocket(target) as socket:
        await socket.send(request(target, "POST", path, CHUNKED))
        if status == 200:
            answer = await socket.answer()
            assert (answer.status, answer.header("connection")) == (200, "close")
        sending = asyncio.create_task(socket.send(flood))
        if status != 200:
            assert (await socket.answer()).status in (400, 431)
        await socket.ended()
        await sending
    assert num_parsed < 2 * FREE_CHUNKS


@pytest.mark.row("B6")
@pytest.mark.parametrize("way", ["answered", "refused", "websocket"])
async def test_what_a_refused_client_goes_on_sending_is_read_only_up_to_a_bound(
    target: Target, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Reading without an end would take a processor, whether or not anything is parsed."""
    num_read = 0
    for protocol in (HttpProtocol, WebSocketProtocol):

        def counted(self: Any, data: bytes, received: Any = protocol.data_received) -> None:
            nonlocal num_read
            num_read += len(data)
            received(self, data)

        monkeypatch.setattr(protocol, "data_received", counted)
    monkeypatch.setattr(lingering, "LINGER_BYTES", 2**20)
    monkeypatch.setattr(lingering, "LINGER_SECONDS", IN_TIME)
    async with RawSocket(target) as socket:
        if way == "websocket":
            await socket.upgrade()
            flood = frame(PONG) * (BURST + 1)
        elif way == "refused":
            flood = b"no request\r\n\r\n"
        else:
            flood = request(target, "POST", "/", [("Content-Length", str(4 * BIG))])
        await socket.send(flood)
        await socket.send(bytes(4 * BIG))  # until we are cut
    assert num_read < 3 * 2**20


@pytest.mark.row("B5")
async def test_a_header_of_two_lines_is_refused_and_a_body_may_look_like_one(
    target: Target,
) -> None:
    async with RawSocket(target) as socket:
        assert (await socket.ask(b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n")).status == 400
    async with RawSocket(target) as socket:
        body = request(target, "POST", headers=[("Content-Length", "9")], body=b"a\r\n b\n\tc")
        assert (await socket.ask(body)).status == 200


# ---- websockets ---------------------------------------------------------------------------------

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
async def test_small_fragments_count_towards_the_rate_whatever_they_hold(
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


@pytest.mark.row("P18")
async def test_the_deadlines_of_http_end_with_the_handshake(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", IN_TIME)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", IN_TIME)
    monkeypatch.setattr(lingering, "LINGER_SECONDS", IN_TIME)
    async with RawSocket(target) as socket:
        await socket.upgrade()
        await asyncio.sleep(2 * IN_TIME)
        await socket.send(frame(TEXT, b"hello"))
        assert (await socket.next("echo"))["length"] == 5
