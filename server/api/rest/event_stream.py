"""Server-sent events: the frames of one answer in the body of an HTTP answer.

The reader is a viewer like a websocket, with a subscription and an outbox of its own. A client that
goes away is only a viewer that left: its answer goes on. Frames are sent as the outbox has encoded
them; of each only the head is read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.live.outbox import Outbox
from server.live.sent_ends import SentEnds
from server.protocol.encoding import encode
from server.protocol.entries import is_final
from server.protocol.errors import ApiError
from server.protocol.server_frames import ConnectionDraining, ErrorFrame
from sessions.background import first_of

HEARTBEAT_SECONDS = 15.0  # proxies drop what is idle for 30
CHECK_SECONDS = 5.0  # a response that goes without an end is missed after so long
HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # or nginx would collect the events
}
HEARTBEAT = b": hb\n\n"


class Head(msgspec.Struct, frozen=True):
    """What a frame says of its place in a stream; all else that it holds is left in its JSON."""

    type: str
    sequence_number: int | None = None
    fence: int | None = None
    part: int | None = None
    parts: int | None = None
    durable: bool = True
    owner: str | None = None
    response: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        return self.type == "response.done"

    @property
    def is_final(self) -> bool:
        """Whether it is the end of an answer, and no other one follows."""
        return self.is_done and is_final({"durable": self.durable, "response": self.response})

    @property
    def position(self) -> str | None:
        """The id of its event, where a client may come back to it.

        That is not inside a snapshot, and not at an end that another one follows.
        """
        is_passing = self.is_done and not self.is_final
        if self.sequence_number is None or self.part != self.parts or is_passing:
            return None
        return f"{self.fence}.{self.sequence_number}"


head_of = msgspec.json.Decoder(Head).decode


class HttpViewer:
    """Who watches answers without a websocket."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.outbox = Outbox(self._on_overflow)
        self.sent_ends = SentEnds()
        self.is_closing = False
        self.is_too_slow = False
        self.refusal: ApiError | None = None  # the first that was put here

    def close_soon(self) -> None:
        """The worker restarts: the client has to come again, with its last position."""
        self.is_closing = True
        self.outbox.put(ConnectionDraining(reconnect_after_ms=1000))

    def evict(self, reason: str) -> None:
        """An admin sends us away."""
        self.put_error(ApiError("forbidden", "an admin has ended this stream"))

    def put_error(self, error: ApiError, event_id: str | None = None) -> None:
        self.refusal = self.refusal or error
        self.outbox.put(ErrorFrame.of(error, event_id))

    async def next_frame(self, seconds: float) -> bytes | None:
        """The next frame, encoded; None if none came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.outbox.get()
        return None

    def _on_overflow(self) -> None:
        self.is_closing = self.is_too_slow = True


class EventStream(Response):
    """Sends a viewer's frames until the last `response.done` of its answer.

    `check` raises `ApiError` when there is nothing to read any more, `leave` is called once, at the
    end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        viewer: HttpViewer,
        *,
        check: Callable[[], Awaitable[None]],
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._viewer = viewer
        self._check = check
        self._leave = leave
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        del self.headers["content-length"]  # nobody knows it yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for task in await first_of(_disconnected(receive), self._write(send)):
                task.result()
        finally:
            await self._leave()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events():
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        """The frames as events; comments in between show proxies that the stream is alive."""
        now = asyncio.get_running_loop().time
        heartbeat_at, check_at = now() + HEARTBEAT_SECONDS, now() + CHECK_SECONDS
        while not self._viewer.is_closing:
            frame = await self._viewer.next_frame(min(heartbeat_at, check_at) - now())
            if frame is not None:
                heartbeat_at = now() + HEARTBEAT_SECONDS
                head = head_of(frame)
                yield encode_event(head, frame)
                if head.type == "error" or head.is_final:
                    return
            elif now() >= heartbeat_at:
                heartbeat_at = now() + HEARTBEAT_SECONDS
                yield HEARTBEAT
            if now() >= check_at:
                check_at = now() + CHECK_SECONDS
                try:
                    await self._check()
                except ApiError as error:
                    self._viewer.put_error(error)
        if self._viewer.is_too_slow:
            refusal = ApiError("slow_consumer", "too much waits to be read; come again and go on")
            frame = encode(ErrorFrame.of(refusal))
            yield encode_event(head_of(frame), frame)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def encode_event(head: Head, frame: bytes) -> bytes:
    """One encoded frame as an event. Its id, if it has one, is the position after it."""
    lines = [b"event: " + head.type.encode(), b"data: " + frame]
    if (position := head.position) is not None:
        lines.append(b"id: " + position.encode())
    return b"\n".join(lines) + b"\n\n"


def parse_event_id(value: str) -> tuple[int, int]:
    """`fence.sequence_number` → both. Raises `ValueError`."""
    fence, dot, number = value.partition(".")
    parts = (fence, number)
    if not dot or not all(p.isascii() and p.isdigit() and len(p) <= 15 for p in parts):
        raise ValueError("an event id is fence.sequence_number")
    return int(fence), int(number)
