"""HTTP answers of what a `Reading` gives: as a stream of events, or whole."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.openai.streams import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    ClientGone,
    StreamBody,
    encode_event,
    until_gone,
)
from server.commands.stateless.reply import Reading
from server.protocol.errors import ApiError
from server.runs.producer import FLUSH_SECONDS


class ReplyStream(Response):
    """Sends events as they come, the first of which is here, and those of 25 ms at a time, as the
    websocket does. `leave` is called once, at the end, no matter who ended it. `encode_error`
    makes the last event of one that cannot go on, from the number of events that were sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        reading: Reading,
        leave: Callable[[], Awaitable[None]],
        encode_error: Callable[[ApiError, int], bytes] = lambda error, _: encode_event(
            {"error": error.body()}
        ),
    ) -> None:
        self._first = first
        self._reading = reading
        self._leave = leave
        self._encode_error = encode_error
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]  # nobody knows it yet
        self.raw_headers += reading.headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._write(scope, send))
        except ClientGone:
            pass
        finally:
            await self._leave()

    async def _write(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        body = StreamBody(scope)
        event, num_sent = self._first, 0
        try:
            while event:
                free_at = asyncio.get_running_loop().time() + FLUSH_SECONDS
                await body.send(event, send)
                num_sent += event.count(b"\ndata: ") + event.startswith(b"data: ")
                event = await self._next(free_at)
        except ApiError as error:
            await body.send(self._encode_error(error, num_sent), send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, free_at: float) -> bytes:
        """Nothing after the last."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await self._reading.next(free_at)
        except TimeoutError:
            return HEARTBEAT


def whole(body: bytes, reading: Reading) -> Response:
    """An answer of JSON that is here."""
    answer = Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
    answer.raw_headers += reading.headers
    return answer
