"""OpenAI's door beside the websocket: what a token costs a worker, and when the first one is here.

Both in one run, in turns, at one server, whose engine core replays steps of one length. Processor
time is compared rather than time, since other programs take their part of the machine.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
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
HAS_TEXT = b'"delta":{"content":"'
IS_DONE = b"data: [DONE]"


class BenchHttp(asyncio.Protocol):
    """A connection that asks for streams, one after the other, and keeps nothing of them."""

    def __init__(self) -> None:
        self._rest = b""
        self._transport: asyncio.Transport
        self._seen: dict[bytes, asyncio.Event] = {}
        self.at: dict[bytes, float] = {}  # when a mark was first seen

    @classmethod
    async def open(cls, server: Server) -> "BenchHttp":
        address = urlsplit(server.url)
        assert address.hostname is not None and address.port is not None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.hostname, address.port)
        return connection

    def ask(self, server: Server, token: str, num_tokens: int) -> None:
        messages = [{"role": "user", "content": QUESTION}]
        body = json.dumps(
            {"model": "demo", "messages": messages, "max_tokens": num_tokens, "stream": True}
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\n"
            f"Host: {urlsplit(server.url).netloc}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._rest, self.at = b"", {}
        self._seen = {mark: asyncio.Event() for mark in (HAS_TEXT, IS_DONE)}
        self._transport.write(head.encode() + body)

    async def see(self, mark: bytes) -> float:
        """When it came."""
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
        self._rest = data[-len(HAS_TEXT) :]


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
    costs: dict[str, list[float]] = {"websocket": [], "OpenAI's door": []}
    ways: dict[str, Work] = {"websocket": _over_sockets, "OpenAI's door": _over_http}
    for number in range(ROUNDS):
        for door in sorted(ways, reverse=bool(number % 2)):
            costs[door].append(await _cost(server, tokens, rate, ways[door]))
    first = await _first_tokens(server, tokens[0])
    where = f"{NUM_STREAMS} streams of {rate:.0f} tokens/s"
    figures = [
        Figure(f"worker's processor time for a token, {door}, {where}", median(each), None, "ms")
        for door, each in costs.items()
    ]
    own, theirs = (median(each) for each in costs.values())
    later = median(b - a for a, b in zip(*first, strict=True)) * 1e3
    return [
        *figures,
        Figure("the same, OpenAI's door / websocket", theirs / own, MAX_COST_RATIO, ""),
        Figure("first token, websocket, median", median(first[0]) * 1e3, None, "ms"),
        Figure("first token, so much later over OpenAI's door", later, MAX_LATER_MS, "ms"),
    ]


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
    await asyncio.sleep(WARM_SECONDS)  # until nothing of it is left
    return seconds / num_tokens * 1e3


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


async def _over_http(server: Server, tokens: Sequence[str], num_tokens: int) -> Callable[[], None]:
    connections = [await BenchHttp.open(server) for _ in tokens]
    for connection, token in zip(connections, tokens, strict=True):
        connection.ask(server, token, num_tokens)
    await asyncio.gather(*(connection.see(HAS_TEXT) for connection in connections))

    def end() -> None:
        for connection in connections:
            connection.close()

    return end


async def _first_tokens(server: Server, token: str) -> tuple[list[float], list[float]]:
    """Seconds until text is here, over the websocket and over OpenAI's door, in turns."""
    socket, connection = await BenchSocket.open(server, token), await BenchHttp.open(server)
    own, theirs = [], []
    for _ in range(NUM_FIRST):
        session = await socket.new_session()
        began = time.monotonic()
        await socket.ask(session, QUESTION, max_output_tokens=2)
        own.append((await socket.next("response.output_text.delta")).at - began)
        await socket.next("response.done")
        began = time.monotonic()
        connection.ask(server, token, 2)
        theirs.append(await connection.see(HAS_TEXT) - began)
        await connection.see(IS_DONE)
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
