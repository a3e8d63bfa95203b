"""Bad handshakes get an answer that says why, while somebody else's answer streams untouched."""

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.frames.raw import TEXT, RawSocket, ask, elsewhere, frame, log_in, upgrade
from tests.end_to_end.oracle import bad_input
from tests.end_to_end.oracle.bad_input import BadHandshake, ClosedHandshake
from tests.end_to_end.site.harness import Server
from tests.helpers.running_time import running_time

pytestmark = pytest.mark.usefixtures("bystander")  # somebody else's answer streams meanwhile


@pytest.mark.row("B6")
@pytest.mark.slow
async def test_a_client_that_makes_no_progress_is_gone_after_12_seconds(server: Server) -> None:
    """A connection without a word, half a head, a head that drips, a socket without a frame."""
    started = running_time()

    async def silent(data: bytes) -> int:
        async with RawSocket(server) as socket:
            await socket.send(data)
            return (await socket.answer()).status

    async def dripping() -> int:
        async with RawSocket(server) as socket:
            answer = asyncio.create_task(socket.answer())
            for place in range(3):
                await socket.send(b"GET"[place : place + 1])
                await asyncio.wait([answer], timeout=5.0)
            return (await answer).status

    async def without_frames() -> int:
        async with RawSocket(server) as socket:
            await socket.upgrade()
            return (await socket.closed())[0]

    half = upgrade(server).removesuffix(b"\r\n")
    ends = await asyncio.gather(silent(b""), silent(half), dripping(), without_frames())
    assert list(ends) == [0, 408, 408, 4408]
    assert running_time() - started < 12


@pytest.mark.row("B5")
async def test_a_url_of_8_kb_is_refused(server: Server) -> None:
    long = upgrade(server, path="/v1/ws?x=" + "y" * 8192)
    assert (await ask(server, long)).status in (414, 431)


@pytest.mark.row("B8")
async def test_frames_may_come_right_after_the_handshake(server: Server) -> None:
    async with RawSocket(server) as socket:
        await socket.send(upgrade(server) + frame(TEXT, b'{"type":"ping","t":7}'))
        assert (await socket.answer()).status == 101
        assert (await socket.next("pong"))["t"] == 7


@pytest.mark.row("B3", "B4", "B5", "B7")
@pytest.mark.parametrize("bad", bad_input.HANDSHAKES, ids=lambda bad: f"{bad.row} {bad.name}")
async def test_a_bad_handshake_gets_an_http_answer(server: Server, bad: BadHandshake) -> None:
    answer = await ask(server, upgrade(server, bad.changed, method=bad.method))
    assert answer.status in bad.statuses
    with_more = upgrade(server, bad.changed, method=bad.method) + b"12345" + bad_input.HELLO
    assert (await ask(server, with_more)).status == answer.status
    if answer.status == 426 or "version" in bad.name:
        assert answer.header("sec-websocket-version") == "13"
    if answer.status == 405:
        assert answer.header("allow") is not None


@pytest.mark.row("B2", "B3", "B4")
@pytest.mark.parametrize(
    "bad", bad_input.CLOSED_HANDSHAKES, ids=lambda bad: f"{bad.row} {bad.name}"
)
async def test_a_refused_client_can_read_why(server: Server, bad: ClosedHandshake) -> None:
    async with RawSocket(server, elsewhere()) as socket:
        answer = await socket.upgrade(bad.changed)
        assert answer.status == 101
        assert not (answer.header("sec-websocket-protocol") or "").startswith("bearer.")
        assert (await socket.closed())[0] == bad.code


@pytest.mark.row("B2")
async def test_a_token_in_the_url_does_not_count(server: Server) -> None:
    async with RawSocket(server, elsewhere()) as socket:
        path = f"/v1/ws?token={server.token}&ticket={server.token}"
        answer = await socket.ask(upgrade(server, {"Authorization": None}, path=path))
        assert answer.status == 101
        assert (await socket.closed())[0] == 4401
    assert server.token not in server.log()


@pytest.mark.row("B1")
async def test_a_cookie_counts_only_with_our_exact_origin(server: Server) -> None:
    cookie = await log_in(server)
    port = str(urlsplit(server.url).port)
    for origin in bad_input.BAD_ORIGINS:
        values = [origin] if isinstance(origin, str) else origin
        given = values and [value.replace("$port", port) for value in values]
        changed = {"Authorization": None, "Cookie": cookie, "Origin": given}
        answer = await ask(server, upgrade(server, changed))
        assert answer.status == 403, origin
    for good in (f"http://127.0.0.1:{port}", f"HTTP://127.0.0.1:{port}"):
        async with RawSocket(server) as socket:
            changed = {"Authorization": None, "Cookie": cookie, "Origin": good}
            assert (await socket.upgrade(changed)).status == 101
            assert (await socket.next("connection.ready"))["user"]["id"] == "local"
