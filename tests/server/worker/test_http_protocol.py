"""Deadlines and limits of `HttpProtocol`, on a real uvicorn with a small application."""

import asyncio
import contextlib
import logging
from typing import Any
from urllib.parse import urlsplit

import pytest

from server.worker import http_protocol, lingering
from server.worker.bounded_h11 import FREE_CHUNKS, BoundedConnection
from server.worker.http_protocol import HttpProtocol
from server.worker.lingering import BAD_REQUEST
from server.worker.websocket.framing import IDLE_FRAMES_PER_S
from server.worker.websocket_protocol import WebSocketProtocol
from tests.end_to_end.frames.raw import PONG, TEXT, RawSocket, frame, request
from tests.server.helpers.answering import until
from tests.server.worker.target import BIG, Target, waiting, was_open

SOON = 0.1  # seconds, for deadlines that a test waits for
IN_TIME = 1.5  # for those that it must not miss, also on a busy machine
BURST = 2 * IDLE_FRAMES_PER_S


async def drip(socket: RawSocket, data: bytes) -> None:
    """A byte every now and then: each comes long before a deadline between two bytes would."""
    for place in range(len(data)):
        await socket.send(data[place : place + 1])
        await asyncio.sleep(SOON / 10)


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


async def streamed(target: Target, sent: bytes) -> list[bytes]:
    """The bodies of all answers on one connection, as they came."""
    was_open.clear()
    async with RawSocket(target) as socket:
        await socket.send(sent)
        received = await socket.rest()
    assert received is not None
    _, *answers = received.split(b"HTTP/1.1 200 ")
    return [answer.partition(b"\r\n\r\n")[2] for answer in answers]


LAST = [("Connection", "close")]
STREAM = b"5\r\n<one>\r\n5\r\n<two>\r\n5\r\nthree\r\n0\r\n\r\n"


async def test_parts_of_a_stream_go_past_all_layers_as_the_chunks_that_others_are(
    target: Target,
) -> None:
    assert await streamed(target, request(target, path="/chunks", headers=LAST)) == [STREAM]
    assert was_open == [(False, True, False)]


async def test_a_stream_that_follows_another_on_its_connection_goes_past_all_layers_too(
    target: Target,
) -> None:
    first, last = request(target, path="/chunks"), request(target, path="/chunks", headers=LAST)
    assert await streamed(target, first + last) == [STREAM, STREAM]
    assert was_open == [(False, True, False)] * 2


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b"GET /chunks HTTP/1.0", b" one  two three"),
        (b"GET /chunks/counted HTTP/1.1", b" one  two three"),
        (b"HEAD /chunks HTTP/1.1", b""),
    ],
    ids=["old", "counted", "head"],
)
async def test_what_is_not_sent_in_chunks_goes_through_all_layers(
    target: Target, line: bytes, body: bytes
) -> None:
    _, _, rest = request(target, headers=LAST).partition(b"\r\n")
    assert await streamed(target, line + b"\r\n" + rest) == [body]
    assert was_open == [(False, False, False)]


async def test_of_a_stream_that_its_client_does_not_read_no_more_waits_than_one_part_above_64_kib(
    target: Target,
) -> None:
    was_open.clear()
    waiting.clear()
    address = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=4096)
    writer.write(request(target, path="/chunks/jam", headers=LAST))
    await until(lambda: bool(waiting) and waiting[-1] > 65536)
    received = await reader.read()
    assert max(waiting) <= 65536 + len(b"2710\r\n" + bytes(10_000) + b"\r\n")
    assert received.count(b"x" * 10_000) == len(waiting)
    assert received.endswith(b"5\r\nthree\r\n0\r\n\r\n")
    assert was_open == [(False, False, False)]
    writer.close()


async def test_nothing_goes_past_all_layers_to_a_client_that_has_left(target: Target) -> None:
    was_open.clear()
    async with RawSocket(target) as socket:
        await socket.send(request(target, path="/chunks/gone"))
        await socket._reader.readuntil(b"here")
    await until(lambda: bool(was_open))
    assert was_open == [(False, False, False)]


async def test_nothing_goes_past_all_layers_to_a_client_that_has_sent_nonsense_meanwhile(
    target: Target,
) -> None:
    was_open.clear()
    async with RawSocket(target) as socket:
        await socket.send(request(target, "POST", "/chunks/over", CHUNKED))
        await socket._reader.readuntil(b"here")
        await socket.send(b"nonsense\r\n")
        await socket.ended()
    await until(lambda: bool(was_open))
    assert was_open == [(False, False, False)]
