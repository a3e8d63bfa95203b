"""`Line`: the two routes of an engine that are asked, over the wire that engines at addresses have.

What comes of an answer is handed on in the turn in which it comes. Nothing that comes is trusted:
sizes and silences are bounded.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.events import EventReader
from server.engines.remote.wire.exchange import (
    MAX_MESSAGE_BYTES,
    Call,
    ask,
    message_of,
    start,
)
from server.engines.remote.wire.problems import BadStatus, Broken, RemoteProblem, Silent
from server.engines.textual.answers import Chunk, read_chunk

LOOK_SECONDS = 10.0  # for a list of models
MAX_LIST_BYTES = 1_000_000
FIRST_SECONDS = 300.0  # of silence, until the engine says something of an answer
NEXT_SECONDS = 60.0  # of silence after that
LAST_SECONDS = 5.0  # for the figures of an answer that has ended
DONE = b"[DONE]"
STREAM = "text/event-stream"


class Patience(msgspec.Struct, frozen=True):
    """How long an answer may stand still, in seconds. Comments and empty events say nothing."""

    first: float = FIRST_SECONDS
    next: float = NEXT_SECONDS
    last: float = LAST_SECONDS


class Line:
    """To the routes below an address, such as `https://host:8000/v1`."""

    def __init__(self, address: RemoteAddress, patience: Patience | None = None) -> None:
        self._address = address
        self._patience = patience or Patience()

    async def models(self) -> bytes:
        """The reply to `GET /models`. Raises `RemoteProblem`."""
        return await ask(self._address, Call("/models"), LOOK_SECONDS, MAX_LIST_BYTES)

    async def chat(
        self, body: Mapping[str, Any], take: Callable[[Chunk], bool], max_bytes: int
    ) -> None:
        """Have `take` called with each event of a streamed answer; return when it is over.

        `take` says whether the answer has ended, so that only its figures can still follow: what
        goes wrong with these is no problem. Raises `RemoteProblem`, also what `take` raises.
        """
        reply = _Reply(take, max_bytes, self._patience)
        exchange = await start(self._address, Call("/chat/completions", body), reply)
        try:
            await reply.read()
        except BadStatus as problem:
            message = self._address.without_key(problem.message)
            raise BadStatus(problem.status, message) from None
        finally:
            exchange.close()


class _Reply:
    """Takes one stream."""

    def __init__(self, take: Callable[[Chunk], bool], max_bytes: int, patience: Patience) -> None:
        self._take = take
        self._bytes_left = max_bytes
        self._patience = patience
        self._seconds = patience.first
        self._last_timer: asyncio.TimerHandle | None = None  # set when the answer has ended
        self._events = EventReader()
        self._status = 0
        self._refusal = bytearray()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def read(self) -> None:
        """Return when all of it is here. Silence is looked at, so that no token starts a timer."""
        try:
            while not self._done.done():
                left = self._heard_at + self._seconds - self._loop.time()
                if left <= 0:
                    raise Silent(f"it has said nothing of the answer for {self._seconds:g} s")
                # Not longer, since the first event makes what is left shorter.
                await asyncio.wait([self._done], timeout=min(left, self._patience.next))
            self._done.result()
        finally:
            if self._last_timer is not None:
                self._last_timer.cancel()

    def began(self, status: int, content_type: str) -> None:
        self._status = status
        if status == 200 and content_type.partition(";")[0].strip().lower() != STREAM:
            raise Broken("its answer is no stream of events")

    def took(self, data: bytes) -> None:
        if self._status != 200:
            self._refusal += data[: MAX_MESSAGE_BYTES - len(self._refusal)]
            return
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise Broken("its answer has no end")
        for event in self._events.feed(data):
            if self._done.done():
                return
            if event == DONE:
                self._done.set_result(None)
            else:
                self._read(_chunk(event))

    def _read(self, chunk: Chunk) -> None:
        has_ended = self._take(chunk)
        if chunk.says_something:
            self._heard_at = self._loop.time()
            self._seconds = self._patience.next
        if has_ended and self._last_timer is None:
            self._last_timer = self._loop.call_later(self._patience.last, self.ended, None)

    def ended(self, problem: RemoteProblem | None) -> None:
        if self._done.done():
            return
        if self._last_timer is not None:
            problem = None
        if problem is None and self._status != 200:
            problem = BadStatus(self._status, message_of(self._status, bytes(self._refusal)))
        if problem is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(problem)
            self._done.exception()  # who would have read it may be gone


def base_of(url: str) -> str:
    """Of an operator's address: as clients of OpenAI have it, or the host alone."""
    scheme, _, rest = url.partition("://")
    return url if "/" in rest else f"{scheme}://{rest}/v1"


def _chunk(event: bytes) -> Chunk:
    try:
        chunk = read_chunk(event)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested without an end
        raise Broken("one of its events cannot be read") from None
    if chunk.error is not None:
        raise Broken("it has failed, by its own word")
    return chunk
