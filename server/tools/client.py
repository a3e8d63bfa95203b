"""`ToolClient`: a worker's end of the socket to the tool process.

It connects when it is first used, and again after the process has died. Nothing here sends a call
twice: a call whose process died is one of unknown outcome.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from server.tools.messages import (
    MAX_ARGUMENT_BYTES,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Call,
    Cancel,
    Done,
    Failed,
    Here,
    ListTools,
    Place,
    Recall,
    Reply,
    Request,
    ToolError,
    ToolResult,
    Tools,
    Where,
    encode,
    read_reply,
)
from sessions.background import Background

READY_SECONDS = 60.0  # for a process that is being started

ReplyT = TypeVar("ReplyT", Here, Tools, Done)


class ToolClient:
    """For one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._background = Background()
        self._connecting = asyncio.Lock()
        self._is_answered = False  # on this connection: the process is up
        self._left: set[str] = set()  # keys of calls that go on without who waits here

    async def place(self) -> Place:
        """To be stored with the word that a call begins. Raises `ToolError`."""
        return (await self._ask(Where(next(self._ids)), Here)).place

    async def list_tools(
        self, wait_seconds: float = 0.0, servers: Iterable[str] | None = None
    ) -> Tools:
        """What servers offer that are up within `wait_seconds`: these, or all.

        Raises `ToolError`.
        """
        names = None if servers is None else tuple(servers)
        return await self._ask(ListTools(next(self._ids), wait_seconds, names), Tools)

    async def call(self, key: str, tool: str, arguments: bytes) -> ToolResult:
        """Run it, once under this key, in a process that is up by then. Raises `ToolError`.

        Cancelled, the call is cancelled at the server unless it was left, and this ends at once.
        """
        if len(arguments) > MAX_ARGUMENT_BYTES:
            raise ToolError("tool_arguments_invalid", f"at most {MAX_ARGUMENT_BYTES} bytes")
        if not self._is_answered:
            await self.place()  # so no call waits for a process that may come up much later
        try:
            reply = await self._ask(Call(next(self._ids), key, tool, arguments), Done)
        except asyncio.CancelledError:
            if key not in self._left:
                self.cancel(key)
            raise
        finally:
            self._left.discard(key)
        return reply.result

    async def recall(self, key: str, place: Place | None) -> ToolResult:
        """The result of a call that another worker began. Runs nothing. Raises `ToolError`."""
        return (await self._ask(Recall(next(self._ids), key, place), Done)).result

    def cancel(self, key: str) -> None:
        """Those who wait for this call get `tool_cancelled`."""
        if self._writer is not None:
            self._writer.write(encode(Cancel(key), MAX_REQUEST_BYTES))

    def leave(self, key: str) -> None:
        """Nobody waits for this call here any more: it goes on, for a worker that recalls it."""
        self._left.add(key)

    async def close(self) -> None:
        """Leave. Calls that run go on, for workers that recall them."""
        await self._background.close()

    async def _ask(self, request: Where | ListTools | Call | Recall, kind: type[ReplyT]) -> ReplyT:
        writer = await self._connect()
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = reply
        try:
            writer.write(encode(request, MAX_REQUEST_BYTES))
            if not self._is_answered:
                async with asyncio.timeout(READY_SECONDS):
                    answer = await reply
            else:
                answer = await reply
        except TimeoutError:
            raise ToolError("tool_server_unavailable", "the tool process does not start") from None
        except ConnectionError:
            raise _lost(request) from None
        finally:
            self._waiting.pop(request.id, None)
        if isinstance(answer, Failed):
            raise ToolError(answer.code, answer.message, is_replayed=answer.is_replayed)
        assert isinstance(answer, kind)
        return answer

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                try:
                    reader, self._writer = await asyncio.open_unix_connection(
                        str(self._path), limit=MAX_REPLY_BYTES
                    )
                except OSError:
                    line = "there is no tool process"
                    raise ToolError("tool_server_unavailable", line) from None
                self._is_answered = False
                self._background.spawn(self._read(reader, self._writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                reply = await read_reply(reader)
                self._is_answered = True
                if (waiting := self._waiting.get(reply.id)) is not None and not waiting.done():
                    waiting.set_result(reply)
        except (EOFError, OSError, ValueError):
            pass
        finally:
            self._writer, self._is_answered = None, False
            with contextlib.suppress(OSError):
                writer.transport.abort()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError())


def _lost(request: Request) -> ToolError:
    if isinstance(request, Call):
        line = "the tool process died during the call; the tool may have run"
        return ToolError("tool_outcome_unknown", line)
    return ToolError("tool_server_unavailable", "the tool process died")
