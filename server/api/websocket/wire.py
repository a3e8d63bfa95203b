"""`Wire`: the socket below a connection of any protocol, what it bears, and its close."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from server.protocol.close_codes import CloseCode
from server.telemetry.metrics import Metrics

MAX_BAD_FRAMES = 3
BAD_FRAMES_WINDOW_SECONDS = 60.0
MAX_STRIKES = 20  # refusals by the message rate before the connection is closed
STRIKES_WINDOW_SECONDS = 60.0
SEND_SECONDS = 15.0  # a socket that takes nothing for so long is given up
ABORT_AFTER_CLOSE_SECONDS = 1.0
FRAMES_PER_TURN = 16  # then other connections have their turn
FAREWELL_SECONDS = 0.1  # for the last frames to leave before the close
MAX_AGE_SECONDS = 3600
TRACED = (b"traceparent", b"tracestate")


class Wire(Protocol):
    """Our protocol class: ASGI's two calls, and what goes past ASGI."""

    transport: asyncio.Transport
    closed_with: int | None  # the code of a close that came from down there
    on_room: Callable[[], None] | None  # called once, when a full socket has room again

    def write_frame(self, payload: bytes) -> bool:
        """Send a text frame; False, and nothing is sent, if it cannot leave now."""

    @property
    def can_write(self) -> bool:
        """Whether a frame can leave now."""

    def write_frames(self, payloads: Sequence[bytes]) -> None:
        """Send several at once, while one can leave."""

    async def receive(self) -> Any: ...

    async def send(self, message: Any) -> None: ...

    def wake(self) -> None:
        """Let `receive` return, though nothing has come."""

    def go_on_with(self, going_on: Callable[[], Awaitable[None]]) -> None:
        """Call this when the application has returned."""


def wire_of(websocket: WebSocket) -> Wire:
    """Our protocol class below this websocket."""
    wire: Wire = websocket.scope["extensions"]["parley.transport"]
    return wire


def traced(websocket: WebSocket) -> HTTPConnection:
    """The upgrade with nothing but what names the asker's span: all else is said by each frame."""
    headers = [header for header in websocket.scope["headers"] if header[0] in TRACED]
    return HTTPConnection({"type": "websocket", "headers": headers})


def fills(times: list[float], most: int, window_seconds: float) -> bool:
    """Note an offence; True if as many as are counted fell into the window."""
    now = time.monotonic()
    times.append(now)
    del times[:-most]
    return len(times) == most and now - times[0] < window_seconds


async def close(
    wire: Wire, metrics: Metrics, code: CloseCode, reason: str, *, is_gone: bool
) -> None:
    """Send the close frame; a jammed socket takes none, so its transport is cut soon after.

    `is_gone`: the client, or what came from below, has closed it; then this only counts.
    """
    if is_gone:
        if wire.closed_with is not None:
            metrics.count_close(wire.closed_with)
        return
    metrics.count_close(int(code))
    try:
        async with asyncio.timeout(ABORT_AFTER_CLOSE_SECONDS):
            await wire.send({"type": "websocket.close", "code": int(code), "reason": reason})
    except TimeoutError:
        wire.transport.abort()
    except (RuntimeError, OSError):
        pass  # it was closed meanwhile, and its close frame may be on its way
