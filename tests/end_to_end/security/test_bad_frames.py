"""Bad frames end as listed, on a real server, while somebody else's answer streams untouched.

The client hears in every case: an error on a connection that goes on, a close frame, or an HTTP
answer; never a connection that just breaks off. The inputs are in `bad_input.py`.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence

import pytest
from websockets.exceptions import ConnectionClosed

from tests.end_to_end.frames.raw import (
    CONTINUATION,
    LOST,
    PING,
    TEXT,
    RawSocket,
    assert_discreet,
    close_frame,
    frame,
    upgrade,
)
from tests.end_to_end.oracle import bad_input
from tests.end_to_end.oracle.bad_input import HELLO, BadBytes, BadFrame
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import still_works
from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("bystander")  # somebody else's answer streams meanwhile

MAX_INVALID_JSON = 2  # on one connection: the third closes it
FRAME_ROWS = sorted({bad.row for bad in bad_input.FRAMES})


async def refuse(client: Client, bad: BadFrame, session: str) -> None:
    """Send a bad frame, read its error, and see that a good one works right after it."""
    await client.socket.send(bad.text.replace("$session", session))
    error = (await client.next("error"))["error"]
    assert error["code"] == bad.code, (bad.text[:200], error)
    if bad.param is not None:
        assert error["param"].partition("[")[0] == bad.param, (bad.text[:200], error)
    assert len(json.dumps(error)) < 1000
    await still_works(client)


def in_connections(frames: Sequence[BadFrame]) -> list[list[BadFrame]]:
    """As many bad frames as one connection may send."""
    harmless = [bad for bad in frames if bad.code != "invalid_json"]
    invalid = [bad for bad in frames if bad.code == "invalid_json"]
    pairs = [
        invalid[place : place + MAX_INVALID_JSON]
        for place in range(0, len(invalid), MAX_INVALID_JSON)
    ]
    return [*([harmless] if harmless else []), *pairs]


@pytest.mark.row(
    "B17", "B18", "B19", "B20", "B21", "B25", "B26", "B27", "B28", "B29", "B32", "B34", "B38"
)
@pytest.mark.parametrize("row", FRAME_ROWS)
async def test_a_bad_frame_is_answered_and_the_connection_stays(server: Server, row: str) -> None:
    async with Client(server) as client:
        session = await client.new_session()
    frames = [bad for bad in bad_input.FRAMES if bad.row == row]
    for group in in_connections(frames):
        async with Client(server) as client:
            await client.send("session.subscribe", session_id=session)
            await client.next("session.subscribed")
            for bad in group:
                await refuse(client, bad, session)
            assert_discreet(server, json.dumps(client.frames).encode())
    assert server.get_json(f"/v1/sessions/{session}/messages")["messages"] == []


@pytest.mark.row("B10")
async def test_binary_frames_are_refused(server: Server) -> None:
    for data in bad_input.BINARY_FRAMES:
        async with Client(server) as client:
            await client.socket.send(data)
            assert (await client.next("error"))["error"]["code"] == "invalid_json"
            await still_works(client)


async def test_the_third_bad_frame_closes_with_4400(server: Server) -> None:
    async with Client(server) as client:
        for _ in range(3):
            await client.socket.send("{")
        assert await client.closed() == 4400


@pytest.mark.row("B8", "B9", "B11", "B12", "B13", "B14", "B15", "P16")
@pytest.mark.parametrize("bad", bad_input.BYTES, ids=lambda bad: f"{bad.row} {bad.name}")
async def test_a_broken_frame_ends_with_a_close_frame(server: Server, bad: BadBytes) -> None:
    async with RawSocket(server) as socket:
        assert (await socket.upgrade()).status == 101
        await socket.next("connection.ready")
        await socket.send(bad.data)
        code, _ = await socket.closed()
        assert code in bad.codes
        await socket.ended()


async def test_so_does_one_in_the_same_packet_as_the_handshake_and_none_costs_memory(
    server: Server,
) -> None:
    (worker,) = server.children("server.worker")
    before = worker.memory_info().rss
    for bad in bad_input.BYTES:
        async with RawSocket(server) as socket:
            await socket.send(upgrade(server) + bad.data)
            assert (await socket.answer()).status == 101
            code, _ = await socket.closed()
            assert code in bad.codes, bad.name
    assert worker.memory_info().rss - before < 20 * 2**20


@pytest.mark.row("B12")
@pytest.mark.slow
async def test_a_message_that_is_open_for_30_seconds_closes_with_4400(server: Server) -> None:
    async with RawSocket(server) as socket:
        await socket.upgrade()
        await socket.send(HELLO + frame(TEXT, b"{", fin=False))
        end = asyncio.create_task(socket.closed(40.0))
        while not end.done():
            await socket.send(frame(CONTINUATION, b" ", fin=False))
            await asyncio.wait([end], timeout=1.0)
        assert end.result() == (4400, "message_timeout")


@pytest.mark.row("B11", "B23")
@pytest.mark.parametrize(
    "text", ["x" * 2**22, "e" + "\u0301" * 10**6], ids=["b11-letters", "b23-marks-on-a-letter"]
)
async def test_a_library_client_hears_why_its_huge_message_was_refused(
    server: Server, text: str
) -> None:
    async with Client(server) as client:
        with contextlib.suppress(ConnectionClosed):
            await client.socket.send(text)
        assert await client.closed() == 1009


@pytest.mark.row("B15")
async def test_nothing_after_a_close_is_processed(server: Server) -> None:
    late = {"type": "session.create", "idempotency_key": "late", "title": "after a close"}
    for closing in (close_frame(1000), frame(TEXT, b"{}", rsv=1), frame(TEXT, b"\xff\xfe")):
        async with RawSocket(server) as socket:
            await socket.upgrade()
            await socket.send(closing + frame(TEXT, json.dumps(late).encode()))
            assert (await socket.closed())[0] != LOST
    titles = {session["title"] for session in server.get_json("/v1/sessions")["sessions"]}
    assert "after a close" not in titles


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"{}", rsv=1), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b" " * (bad_input.MAX_MESSAGE_BYTES + 1)), 1009),
        (frame(PING) * 1000, 4429),
    ],
)
async def test_closes_for_broken_framing_are_counted_by_code(
    server: Server, data: bytes, code: int
) -> None:
    before = await asyncio.to_thread(server.num_closes, code)
    async with RawSocket(server) as socket:
        await socket.upgrade()
        await socket.send(data)
        assert (await socket.closed())[0] == code
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(server.num_closes, code) == before:
            pass  # each look takes a while: there is no event to wait for
    assert await asyncio.to_thread(server.num_closes, code) == before + 1
