"""How much a server may say: bytes and values of a message, and messages that nobody asked for."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import anyio
from mcp.shared._stream_protocols import ReadStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

from server.tools.servers.catalogue import MAX_TOOLS

MAX_MESSAGE_BYTES = 4 * 2**20
# Of a few bytes each; as objects of Python they take fifty times the room.
MAX_VALUES = 200_000
UNASKED_PER_SECOND, UNASKED_AT_ONCE = 50.0, 200.0
UNASKED_UNIT_BYTES = 4096
TOO_LARGE = "the server's message is too large"


class Measure:
    """Of one message, which comes in pieces."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._num_values = 0

    def is_exceeded_by(self, piece: bytes) -> bool:
        self._num_bytes += len(piece)
        self._num_values += piece.count(b",") + piece.count(b"[") + piece.count(b"{")
        return self._num_bytes > MAX_MESSAGE_BYTES or self._num_values > MAX_VALUES


class Unasked:
    """Slows a server down that says what nobody has asked for. `now` is replaced in tests."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left = UNASKED_AT_ONCE
        self._filled_at = now()

    async def take(self, num_bytes: int = 0) -> None:
        """Count one; wait until it is paid for. The pipe fills up meanwhile."""
        now = self._now()
        earned = (now - self._filled_at) * UNASKED_PER_SECOND
        self._left = min(UNASKED_AT_ONCE, self._left + earned)
        self._filled_at = now
        self._left -= 1 + num_bytes / UNASKED_UNIT_BYTES
        if self._left < 0:
            await asyncio.sleep(-self._left / UNASKED_PER_SECOND)


class BoundedStream:
    """A server's messages on their way to the session: long lists are cut, floods slowed down.

    What a session does for each tool of a list takes long, so the list is cut before it.
    """

    def __init__(self, stream: ReadStream[SessionMessage | Exception]) -> None:
        self._stream = stream
        self._unasked = Unasked()
        self.num_cut = 0  # lists

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        if isinstance(item, Exception):
            await self._unasked.take()
            return item
        if isinstance(item.message, JSONRPCResponse):
            self._cut(item.message.result)
        elif not isinstance(item.message, JSONRPCError):
            await self._unasked.take()
        return item

    def _cut(self, result: dict[str, Any]) -> None:
        tools = result.get("tools")
        if isinstance(tools, list) and len(tools) > MAX_TOOLS:
            del tools[MAX_TOOLS + 1 :]  # the one more says that there were more
            self.num_cut += 1

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> "BoundedStream":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> "BoundedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, traceback)
