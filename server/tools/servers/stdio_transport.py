"""A server that is a program: its process, its pipes, and the end of both.

Not the package's own client, which reads lines of any length. Here a line has a bound, what is no
message costs the program its speed, and the end is the process's own: children that hold its pipes
are ended with it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import msgspec
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    Tool,
    jsonrpc_message_adapter,
)

from server.tools.configuration import ServerConfig
from server.tools.reaping import MARK, kill_group, kill_marked
from server.tools.servers.bounds import MAX_MESSAGE_BYTES, TOO_LARGE, Measure, Unasked
from server.tools.servers.catalogue import MAX_TOOLS
from sessions.background import start

logger = structlog.get_logger("server")

KEPT_VARIABLES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER")
MAX_QUEUED = 64  # messages to it: it does not read
WRITE_SECONDS = 10.0
GRACE_SECONDS = 2.0  # after its stdin was closed, and again after SIGTERM
LAST_WORDS_SECONDS = 0.2
MAX_JUNK_LINES = 1000
STDERR_BYTES = 2048

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


class _Envelope(msgspec.Struct):
    """What a message is, without the objects of what it holds."""

    id: int | str | None = None
    method: str | None = None


class _ListedTools(msgspec.Struct):
    tools: list[msgspec.Raw]
    nextCursor: str | None = None  # a name of the protocol


class _List(msgspec.Struct):
    result: _ListedTools | None = None
    error: msgspec.Raw = msgspec.Raw()


_envelopes = msgspec.json.Decoder(_Envelope)
_lists = msgspec.json.Decoder(_List)


class StdioServer:
    """One run of a program. `on_exit` is called when its process has ended, and `on_end`, with a
    line that says why, when nothing more can come from it.
    """

    def __init__(
        self,
        config: ServerConfig,
        mark: str,
        on_exit: Callable[[], None],
        on_end: Callable[[str], None],
        pids: set[int],
    ) -> None:
        self._config = config
        self._mark = mark
        self._on_exit = on_exit
        self._on_end = on_end
        self._pids = pids  # that somebody waits for
        self._asked: dict[int | str, str] = {}  # requests without an answer, and their methods
        self._tail: deque[int] = deque(maxlen=STDERR_BYTES)
        self._has_exited = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_hung = False  # then it gets no time to end by itself

    @property
    def last_words(self) -> str:
        """The end of what it has said on stderr, for the operator's log alone."""
        return bytes(self._tail).decode(errors="replace")

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Streams]:
        """Raises OSError where the program cannot be started."""
        process = self._start()
        to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        write, from_session = anyio.create_memory_object_stream[SessionMessage](MAX_QUEUED)
        pidfd = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, self._exited, pidfd)
        tasks: list[asyncio.Task[None]] = []
        try:
            for work in (
                self._read(process, to_session),
                self._write(process, from_session),
                self._listen(process),
            ):
                tasks.append(start(work))
            yield read, write
        finally:
            await self._stop(process, tasks)
            loop.remove_reader(pidfd)
            os.close(pidfd)
            for stream in (to_session, read, write, from_session):
                stream.close()

    def _start(self) -> subprocess.Popen[bytes]:
        config = self._config
        assert config.command is not None
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        process = subprocess.Popen(
            [config.command, *config.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=config.cwd,
            env={**kept, **config.env, MARK: self._mark},
            start_new_session=True,
        )
        self._process = process
        self._pids.add(process.pid)
        return process

    def _exited(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        self._has_exited.set()
        self._on_exit()

    async def _read(
        self,
        process: subprocess.Popen[bytes],
        to_session: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Messages until the end of the program, or of our patience."""
        async with _reader(process.stdout, MAX_MESSAGE_BYTES) as reader:
            watch = start(self._watch(process, reader))
            try:
                why = await self._read_lines(reader, to_session)
            finally:
                watch.cancel()
        self._on_end(why)
        to_session.close()  # those who wait for an answer hear that none comes

    async def _watch(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader) -> None:
        """Its children may hold the pipe: its own end is what counts."""
        await self._has_exited.wait()
        kill_group(process.pid)
        await asyncio.sleep(LAST_WORDS_SECONDS)
        reader.feed_eof()

    async def _read_lines(
        self,
        reader: asyncio.StreamReader,
        to_session: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> str:
        unasked, num_junk = Unasked(), 0
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                if self._has_exited.is_set():
                    return "it has ended"
                return "it has closed its stdout"
            except asyncio.LimitOverrunError:
                for number in self._asked:
                    await _send(to_session, _too_large(number))
                return "a line of it has no end"
            if (message := self._parse(line)) is not None:
                if not await _send(to_session, message):
                    return "its session is over"
                continue
            num_junk += 1
            if num_junk > MAX_JUNK_LINES:
                return "it writes what is no message"
            await unasked.take(len(line))

    def _parse(self, line: bytes) -> SessionMessage | None:
        """None for what is no message, or an answer to nothing."""
        try:
            envelope = _envelopes.decode(line)
            if envelope.method is None:
                if envelope.id is None or envelope.id not in self._asked:
                    return None
                method = self._asked.pop(envelope.id)
                if Measure().is_exceeded_by(line):
                    return _too_large(envelope.id)
                if method == "tools/list":
                    line = self._shorten(line, envelope.id)
            elif Measure().is_exceeded_by(line):
                return None
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except (ValueError, RecursionError):  # msgspec's and pydantic's errors are ValueErrors
            return None

    def _shorten(self, line: bytes, number: int | str) -> bytes:
        """A list without what is too much or malformed: one bad tool is not all of them."""
        listed = _lists.decode(line).result
        if listed is None:
            return line
        tools = [raw for raw in listed.tools[: MAX_TOOLS + 1] if _is_tool(bytes(raw))]
        if len(tools) < min(len(listed.tools), MAX_TOOLS + 1):
            logger.warning("tools are not of the protocol", server=self._config.name)
        result: dict[str, Any] = {"tools": tools}
        if listed.nextCursor is not None:
            result["nextCursor"] = listed.nextCursor
        return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "result": result})

    async def _write(
        self,
        process: subprocess.Popen[bytes],
        from_session: MemoryObjectReceiveStream[SessionMessage],
    ) -> None:
        assert process.stdin is not None
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(_Flow, process.stdin)
        try:
            async for item in from_session:
                content = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                if isinstance(item.message, JSONRPCRequest):
                    self._asked[item.message.id] = item.message.method
                transport.write(content.encode() + b"\n")
                async with asyncio.timeout(WRITE_SECONDS):
                    await protocol.has_room.wait()
                if transport.is_closing():
                    return
        except TimeoutError:
            self.is_hung = True
            self._on_end("it does not read what it is sent")
        finally:
            transport.close()

    async def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Its stderr, of which the end is kept: it must not stand still because nobody reads."""
        async with _reader(process.stderr, 65536) as reader:
            while piece := await reader.read(65536):
                self._tail.extend(piece[-STDERR_BYTES:])
                await asyncio.sleep(len(piece) / 2**20)  # a flood gets a megabyte a second

    async def _stop(
        self, process: subprocess.Popen[bytes], tasks: list[asyncio.Task[None]]
    ) -> None:
        """Politely, if it listens; then its whole group, and who has left that."""
        try:
            if not self.is_hung:
                tasks[1].cancel()  # which closes its stdin
                await self._exits_within(GRACE_SECONDS)
                if not self._has_exited.is_set():
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(signal.SIGTERM)
                    await self._exits_within(GRACE_SECONDS)
        finally:
            kill_group(process.pid)
            for task in tasks:
                task.cancel()
            await self._exits_within(GRACE_SECONDS)  # killed: at once, or the kernel holds it
            process.poll()
            self._pids.discard(process.pid)  # then it is waited for like a stranger's child
            kill_marked(self._mark)

    async def _exits_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_exited.wait()


class _Flow(asyncio.BaseProtocol):
    """Whether the pipe takes more."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.has_room.set()

    def pause_writing(self) -> None:
        self.has_room.clear()

    def resume_writing(self) -> None:
        self.has_room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.has_room.set()


def _is_tool(raw: bytes) -> bool:
    try:
        Tool.model_validate_json(raw, by_name=False)
    except ValueError:
        return False
    return True


async def _send(
    to_session: MemoryObjectSendStream[SessionMessage | Exception], message: SessionMessage
) -> bool:
    try:
        await to_session.send(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return False
    return True


def _too_large(number: int | str) -> SessionMessage:
    error = ErrorData(code=INTERNAL_ERROR, message=TOO_LARGE)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


@contextlib.asynccontextmanager
async def _reader(pipe: object, limit: int) -> AsyncIterator[asyncio.StreamReader]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()
