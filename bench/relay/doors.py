"""OpenAI's doors beside the websocket: what a token costs a worker, and when the first one is here.

Both in one run, in turns, at one server, whose engine core replays steps of one length. Processor
time is compared rather than time, since other programs take their part of the machine.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
import uvloop

from bench.harness.report import Figure
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import ANSWER_SECONDS, BenchSocket
from engine import demo_model
from tests.end_to_end.site.harness import Server

NUM_STREAMS = 64
ROUNDS = 4
WARM_SECONDS = 1.0  # until all answers have begun
SECONDS = 5.0
NUM_FIRST = 40
QUESTION = "Tell me a story."
TOKENS = "parley_generation_tokens_total"
MAX_COST_RATIO = 1.1
MAX_LATER_MS = 10.0


class Door(NamedTuple):
    """One of OpenAI's ways to ask for a stream."""

    path: str
    question: dict[str, Any]
    limit: str  # the field for the answer's length
    has_text: bytes  # in a stream, from the first text on
    is_done: bytes


DOORS = (
    Door(
        "chat/completions",
        {"messages": [{"role": "user", "content": QUESTION}]},
        "max_tokens",
        b'"delta":{"content":"',
        b"data: [DONE]",
    ),
    Door(
        "responses",
        {"input": QUESTION},
        "max_output_tokens",
        b"event: response.output_text.delta",
        b'"type":"response.incomplete"',
    ),
)


class BenchHttp(asyncio.Protocol):
    """A connection that asks for streams, one after the other, and keeps nothing of them."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._rest = b""
        self._transport: asyncio.Transport
        self._seen: dict[bytes, asyncio.Event] = {}
        self.at: dict[bytes, float] = {}  # when a mark was first seen

    @classmethod
    async def open(cls, server: Server, door: Door) -> "BenchHttp":
        address = urlsplit(server.url)
        assert address.hostname is not None and address.port is not None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            partial(cls, door), address.hostname, address.port
        )
        return connection

    def ask(self, server: Server, token: str, num_tokens: int) -> None:
        door = self._door
        body = json.dumps(
            {"model": "demo", door.limit: num_tokens, "stream": True, **door.question}
        ).encode()
        head = (
            f"POST /v1/{door.path} HTTP/1.1\r\n"
            f"Host: {urlsplit(server.url).netloc}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._rest, self.at = b"", {}
        self._seen = {mark: asyncio.Event() for mark in (door.has_text, door.is_done)}
        self._transport.write(head.encode() + body)

    async def see_text(self) -> float:
        """When its first text came."""
        return await self._see(self._door.has_text)

    async def see_end(self) -> float:
        """When it ended."""
        return await self._see(self._door.is_done)

    async def _see(self, mark: bytes) -> float:
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._seen[mark].wait()
        return self.at[mark]

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now, data = time.monotonic(), self._rest + data
        for mark, seen in self._seen.items():
            if mark not in self.at and mark in data:
                self.at[mark] = now
                seen.set()
        self._rest = data[-max(map(len, self._seen)) :]


Work = Callable[[Server, Sequence[str], int], Awaitable[Callable[[], None]]]


def doors(rate: float, kind: type[Server]) -> list[Figure]:
    """At so many tokens/s and stream."""
    with tempfile.TemporaryDirectory() as folder:
        schedule = Path(folder) / "schedule"
        schedule.write_text(json.dumps([1000 / rate]))
        os.environ.update(REPLAY_SCHEDULE=str(schedule), REPLAY_LOG=str(Path(folder) / "log"))
        with running_server(demo_model(), kind) as server:
            return uvloop.run(_compare(server, rate))


async def _compare(server: Server, rate: float) -> list[Figure]:
    tokens = await user_tokens(server, NUM_STREAMS)
    ways: dict[str, Work] = {"websocket": _over_sockets}
    ways |= {door.path: partial(_over_http, door) for door in DOORS}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for name in sorted(ways, reverse=bool(number % 2)):
            costs[name].append(await _cost(server, tokens, rate, ways[name]))
    where = f"{NUM_STREAMS} streams of {rate:.0f} tokens/s"
    figures = [
        Figure(f"worker's processor time for a token, {name}, {where}", median(each), None, "ms")
        for name, each in costs.items()
    ]
    own = median(costs["websocket"])
    for door in DOORS:
        ratio, first = median(costs[door.path]) / own, await _first_tokens(server, tokens[0], door)
        later = median(b - a for a, b in zip(*first, strict=True)) * 1e3
        figures += [
            Figure(f"the same, {door.path} / websocket", ratio, MAX_COST_RATIO, ""),
            Figure("first token, websocket, median", median(first[0]) * 1e3, None, "ms"),
            Figure(f"first token, so much later over {door.path}", later, MAX_LATER_MS, "ms"),
        ]
    return figures


async def _cost(server: Server, tokens: Sequence[str], rate: float, begin: Work) -> float:
    """Milliseconds of the workers for a token."""
    end = await begin(server, tokens, int((WARM_SECONDS + SECONDS + 2.0) * rate))
    await asyncio.sleep(WARM_SECONDS)
    counted = await asyncio.to_thread(server.metric, TOKENS)
    started = _worker_seconds(server)
    await asyncio.sleep(SECONDS)
    seconds = _worker_seconds(server) - started
    num_tokens = await asyncio.to_thread(server.metric, TOKENS) - counted
    end()
    await _until_quiet(server)
    return seconds / num_tokens * 1e3


async def _until_quiet(server: Server) -> None:
    """Until nothing is left of it: a stored response goes on without its client."""
    before = -1.0
    while (now := await asyncio.to_thread(server.metric, TOKENS)) != before:
        before = now
        await asyncio.sleep(WARM_SECONDS)


async def _over_sockets(
    server: Server, tokens: Sequence[str], num_tokens: int
) -> Callable[[], None]:
    sockets = [await BenchSocket.open(server, token) for token in tokens]
    sessions = [await socket.new_session() for socket in sockets]
    asking = [
        socket.ask(session, QUESTION, max_output_tokens=num_tokens)
        for socket, session in zip(sockets, sessions, strict=True)
    ]
    responses = await asyncio.gather(*asking)

    def end() -> None:
        for socket, response in zip(sockets, responses, strict=True):
            socket.send("stop", response_id=response)
            asyncio.get_running_loop().call_later(WARM_SECONDS / 2, socket.close)

    return end


async def _over_http(
    door: Door, server: Server, tokens: Sequence[str], num_tokens: int
) -> Callable[[], None]:
    connections = [await BenchHttp.open(server, door) for _ in tokens]
    for connection, token in zip(connections, tokens, strict=True):
        connection.ask(server, token, num_tokens)
    await asyncio.gather(*(connection.see_text() for connection in connections))

    def end() -> None:
        for connection in connections:
            connection.close()

    return end


async def _first_tokens(server: Server, token: str, door: Door) -> tuple[list[float], list[float]]:
    """Seconds until text is here, over the websocket and over this door, in turns."""
    socket, connection = await BenchSocket.open(server, token), await BenchHttp.open(server, door)
    own, theirs = [], []
    for _ in range(NUM_FIRST):
        session = await socket.new_session()
        began = time.monotonic()
        await socket.ask(session, QUESTION, max_output_tokens=2)
        own.append((await socket.next("response.output_text.delta")).at - began)
        await socket.next("response.done")
        began = time.monotonic()
        connection.ask(server, token, 2)
        theirs.append(await connection.see_text() - began)
        await connection.see_end()
    socket.close()
    connection.close()
    return own, theirs


def _worker_seconds(server: Server) -> float:
    """Processor time so far."""
    assert server.process is not None
    seconds = 0.0
    for process in psutil.Process(server.process.pid).children(recursive=True):
        if "server.worker" in " ".join(process.cmdline()):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
