"""`StandIn`: a server with OpenAI's routes that does what a script says, also what none should."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

STREAM = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json"}


@dataclass
class Reply:
    """To one call. An event among the pieces is waited for; `is_cut`: no end is written.

    `ever` is written again and again instead of an end.
    """

    pieces: Sequence[bytes | asyncio.Event] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: STREAM)
    is_cut: bool = False
    ever: bytes = b""


DONE = b"data: [DONE]\n\n"


def chunk(
    content: str | None = None,
    reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    **delta: Any,
) -> bytes:
    """An event, as servers write them."""
    delta |= {} if content is None else {"content": content}
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
    event: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk"}
    event |= {"choices": [] if usage else choices, "usage": usage}
    return b"data: " + orjson.dumps(event) + b"\n\n"


def call_chunk(index: int, name: str | None, arguments: str) -> bytes:
    """An event that says something of a call."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return chunk(tool_calls=[{"index": index, "type": "function", "function": function}])


def usage(num_prompt: int, num_output: int, num_cached: int = 0) -> bytes:
    return chunk(
        usage={
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }
    )


def said(*texts: str, reason: str = "stop") -> Reply:
    """A whole answer."""
    return Reply([*map(chunk, texts), chunk(reason=reason), usage(7, len(texts)), DONE])


def broken(*texts: str) -> Reply:
    """One whose connection ends in the middle."""
    return Reply([*map(chunk, texts)], is_cut=True)


def refused(status: int, message: str = "no", **headers: str) -> Reply:
    body = orjson.dumps({"error": {"message": message}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([body], status, JSON | named)


class StandIn:
    """Listens on this machine. `replies` are given one after the other; `asked` has what came."""

    def __init__(self, server: str = "vllm", context: int | None = 1000) -> None:
        model: dict[str, Any] = {"id": "m", "object": "model", "owned_by": server}
        if context is not None:
            model["max_model_len"] = context
        self.models = Reply([orjson.dumps({"data": [model]})], headers=JSON)
        self.replies: deque[Reply] = deque()
        self.asked: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.was_left = asyncio.Event()  # a reader has closed a stream before its end
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def listen(self) -> None:
        """At the same port, if it has listened before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """As a process that is killed: nobody listens, and what is open is cut."""
        assert self._server is not None
        self._server.close()
        for writer in [*self._writers]:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                async for path, body in _requests(reader, self.heads):
                    reply = self.models
                    if path == b"/v1/chat/completions":
                        self.asked.append(orjson.loads(body))
                        reply = self.replies.popleft()
                    if not await self._write(reply, reader, writer):
                        break
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _write(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = f"HTTP/1.1 {reply.status} X\r\nTransfer-Encoding: chunked\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        writer.write(head.encode() + b"\r\n")
        for piece in reply.pieces:
            if isinstance(piece, asyncio.Event):
                await writer.drain()
                if not await _comes(piece, reader):
                    self.was_left.set()
                    return False
            else:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
        while reply.ever:
            writer.write(b"%x\r\n%s\r\n" % (len(reply.ever), reply.ever))
            await writer.drain()
            await asyncio.sleep(0.01)
        if reply.is_cut:  # what was written before arrives
            writer.write_eof()
            await reader.read()
            return False
        writer.write(b"0\r\n\r\n")
        return True


async def _comes(event: asyncio.Event, reader: asyncio.StreamReader) -> bool:
    """Whether it comes before the reader's end leaves."""
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(reader.read(1))]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[0] in done
    finally:
        for wait in waits:
            wait.cancel()


async def _requests(
    reader: asyncio.StreamReader, heads: list[bytes]
) -> AsyncIterator[tuple[bytes, bytes]]:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        yield head.split(b" ")[1], await reader.readexactly(length)
