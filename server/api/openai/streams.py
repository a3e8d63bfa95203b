"""Answers to calls whose client must stay: it leaves, and the generation ends."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessions.background import start

T = TypeVar("T")

HEARTBEAT_SECONDS = 15.0  # proxies drop what is idle for 30
HEARTBEAT = b": still here\n\n"
DONE = b"data: [DONE]\n\n"


def encode_event(data: Any) -> bytes:
    """As a server-sent event without a name."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


class ClientGone(Exception):
    """Nobody reads any more."""


class Chunks(Protocol):
    """Our protocol class: the way of a body's parts past ASGI."""

    @property
    def is_open(self) -> bool:
        """Whether a part can leave now."""

    def write(self, part: bytes) -> None:
        """Send one, while it is open."""


class StreamBody:
    """The body of a streamed answer. Its parts go past ASGI while nothing waits in the socket."""

    def __init__(self, scope: Scope) -> None:
        self._chunks: Chunks | None = scope.get("extensions", {}).get("parley.chunks")
        self.sent_at = time.monotonic()

    def is_open(self) -> bool:
        """Whether `write` may be called: never, where another server is below."""
        return self._chunks is not None and self._chunks.is_open

    def write(self, part: bytes) -> None:
        """Send a part at once."""
        assert self._chunks is not None  # it is open
        self._chunks.write(part)
        self.sent_at = time.monotonic()

    async def send(self, part: bytes, send: Send) -> None:
        """Send a part as soon as the socket has room."""
        if self.is_open():
            self.write(part)
        else:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self.sent_at = time.monotonic()


class TokenStream(Response):
    """Sends events as they come; others may go straight into its body meanwhile.

    `leave` is called once, at the end, no matter who ended it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        body: StreamBody,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._events = events
        self._body = body
        self._leave = leave
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]  # nobody knows it yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._write(send))
        except ClientGone:
            pass
        finally:
            await self._events.aclose()
            await self._leave()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        beating = start(self._beat(send))
        try:
            async for event in self._events:
                await self._body.send(event, send)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        """Whenever nothing was sent for a while."""
        while True:
            left = self._body.sent_at + HEARTBEAT_SECONDS - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self._body.send(HEARTBEAT, send)


async def next_of(events: AsyncGenerator[T, None]) -> T | None:
    """None after the last."""
    return await anext(events, None)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises `ClientGone`, and cancels it, if the client leaves meanwhile."""
    working, leaving = start(work), start(_disconnected(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():  # even if an event came at the same time: nobody would read it
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def check_is_here(receive: Receive) -> None:
    """Raises `ClientGone` if the client has left by now."""
    leaving = start(_disconnected(receive))
    await asyncio.sleep(0)  # what has come is taken in one turn
    is_gone = leaving.done()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    if is_gone:
        raise ClientGone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def gone() -> Response:
    """For a client that will not read it."""
    return Response(status_code=499)
