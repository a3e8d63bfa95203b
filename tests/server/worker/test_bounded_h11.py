"""What is parsed of a request before its sender is refused, and that nothing is parsed after."""

from __future__ import annotations

from typing import Any

import h11
import pytest

from server.worker.bounded_h11 import (
    BYTES_PER_CHUNK,
    FREE_CHUNKS,
    MAX_EMPTY_BYTES,
    BoundedConnection,
)
from server.worker.middleware import MAX_HEADER_BYTES

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = h11.Response(status_code=200, headers=[("content-length", "0")])


def chunk(size: int) -> bytes:
    return b"%x\r\n%s\r\n" % (size, bytes(size))


def events(connection: BoundedConnection, data: bytes) -> list[Any]:
    """What comes of these bytes, up to where more are needed."""
    connection.receive_data(data)
    found = []
    while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        found.append(event)
    return found


@pytest.fixture
def connection() -> BoundedConnection:
    return BoundedConnection(MAX_HEADER_BYTES)


def refused(connection: BoundedConnection, data: bytes) -> int:
    """The status with which these bytes are refused."""
    with pytest.raises(h11.RemoteProtocolError) as error:
        events(connection, data)
    return error.value.error_status_hint


@pytest.mark.parametrize("size", [1, 2, 100, BYTES_PER_CHUNK - 1])
def test_a_flood_of_small_chunks_is_refused_before_it_is_parsed(
    connection: BoundedConnection, size: int
) -> None:
    assert len(events(connection, HEAD)) == 1
    connection.receive_data(chunk(size) * 400_000)
    num_parsed = 0
    with pytest.raises(h11.RemoteProtocolError, match="small chunks"):
        while True:
            connection.next_event()
            num_parsed += 1
    most = FREE_CHUNKS / (1 - size / BYTES_PER_CHUNK)
    assert num_parsed <= most + 1


@pytest.mark.parametrize("size", [BYTES_PER_CHUNK, 4096, 65536])
def test_a_large_body_in_chunks_of_ordinary_size_is_read_whole(
    connection: BoundedConnection, size: int
) -> None:
    num_chunks = 16 * 2**20 // size
    found = events(connection, HEAD)
    for _ in range(num_chunks):
        found += events(connection, chunk(size))
    assert sum(len(event.data) for event in found[1:]) == num_chunks * size


def test_a_small_body_may_come_in_chunks_of_one_byte_and_so_may_the_next_one(
    connection: BoundedConnection,
) -> None:
    for _ in range(3):
        found = events(connection, HEAD + chunk(1) * FREE_CHUNKS + b"0\r\n\r\n")
        assert isinstance(found[-1], h11.EndOfMessage)
        connection.send(OK)
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()


def test_nothing_is_parsed_of_a_body_whose_request_is_answered(
    connection: BoundedConnection,
) -> None:
    events(connection, HEAD + chunk(1))
    answer = connection.send(OK)
    connection.send(h11.EndOfMessage())
    assert b"connection: close" in answer.lower()
    assert connection.our_state is h11.MUST_CLOSE
    assert events(connection, chunk(1) * 100_000) == []


def test_a_request_whose_body_is_here_is_answered_on_a_connection_that_goes_on(
    connection: BoundedConnection,
) -> None:
    events(connection, HEAD + chunk(1) + b"0\r\n\r\n")
    assert b"close" not in connection.send(OK).lower()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\nHost: x\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 3000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\na: b\r\n c\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\ncontent-length: 5\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", 400),
    ],
    ids="long-line many-headers fold two-lengths length-list chunks-1.0 upgrade-1.0".split(),
)
def test_a_head_that_proxies_would_read_in_another_way_is_refused(
    connection: BoundedConnection, lines: bytes, status: int
) -> None:
    assert refused(connection, lines + b"\r\n") == status


def test_a_head_of_the_largest_size_passes(connection: BoundedConnection) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nA: "
    head += b"x" * (MAX_HEADER_BYTES - len(head) - 4) + b"\r\n\r\n"
    assert isinstance(events(connection, head)[0], h11.Request)


def test_one_head_that_waits_behind_another_is_measured_too(connection: BoundedConnection) -> None:
    short = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    events(connection, short + b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 3000 + b"\r\n")
    connection.send(OK)
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError) as error:
        connection.next_event()
    assert error.value.error_status_hint == 431


@pytest.mark.parametrize("empty", [b"\r\n", b"\r\n\r\n", b"\n"])
def test_empty_lines_in_front_of_a_request_are_skipped(
    connection: BoundedConnection, empty: bytes
) -> None:
    assert events(connection, empty) == []
    (request, end) = events(connection, empty + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert isinstance(request, h11.Request) and isinstance(end, h11.EndOfMessage)


@pytest.mark.parametrize("empty", [b"\r\n", b"\n"])
def test_a_flood_of_empty_lines_is_refused(connection: BoundedConnection, empty: bytes) -> None:
    get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(2):  # each request may have its own
        for _ in range(MAX_EMPTY_BYTES // len(empty)):
            assert events(connection, empty) == []
        assert len(events(connection, get)) == 2
        connection.send(OK)
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
    assert events(connection, empty * (MAX_EMPTY_BYTES // len(empty))) == []
    assert refused(connection, empty) == 400
