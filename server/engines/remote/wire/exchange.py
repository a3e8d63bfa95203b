"""One request over one connection: HTTP/1.1 by h11, in callbacks of the event loop.

An answer is a reply that goes on for minutes, with an event for each token. So what comes is handed
on in the turn in which it comes: there is no task, queue or future for a token. A reply in another
place (a redirect) is not followed, and none is larger than its receiver allows.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import h11
import orjson

from server.engines.remote.wire.address import RemoteAddress
from server.engines.remote.wire.problems import (
    BadStatus,
    Broken,
    RemoteProblem,
    Silent,
    Unreachable,
)

CONNECT_SECONDS = 5.0
PLAIN = b"identity"  # how replies are encoded
MAX_EVENTS_PER_TURN = 256  # of h11, which a reply may have one of for each byte
MAX_HEAD_BYTES = 64 * 1024
CUT = "the connection was closed before the end of the reply"
MAX_REPLY_BYTES = 4 << 20  # of a reply that comes as a whole
MAX_MESSAGE_BYTES = 64 * 1024  # of what is read of an error


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked: a route, and a body in builtins; None: it is only looked at."""

    path: str
    body: Mapping[str, object] | None = None


class Receiver(Protocol):
    """Who takes a reply. `ended` is called once, if nobody has closed the exchange before."""

    def began(self, status: int, content_type: str) -> None:
        """Raises `RemoteProblem` to end it."""

    def took(self, data: bytes) -> None:
        """Raises `RemoteProblem` to end it."""

    def ended(self, problem: RemoteProblem | None) -> None:
        """None: the reply is whole."""


class Exchange(asyncio.Protocol):
    """One request; the reply is the receiver's. Raises `Misfit` for a key."""

    def __init__(self, address: RemoteAddress, call: Call, receiver: Receiver) -> None:
        self.was_sent = False  # the other side may know of it
        self._address = address
        self._connection = h11.Connection(h11.CLIENT, MAX_HEAD_BYTES)
        self._request = _encode(address, call, self._connection)
        self._receiver: Receiver | None = receiver
        self._transport: asyncio.Transport | None = None
        self._has_ended = False  # the other side sends no more
        self._has_more = False  # that has come, and is read in the next turn
        self._lost: RemoteProblem | None = None  # the connection, meanwhile

    async def send(self) -> None:
        """Return when it is on its way. Raises `Unreachable`, or `Misfit` for certificates."""
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: self, address.host, address.port, ssl=address.trust
                )
        except TimeoutError:
            problem = f"{address.url}: no connection within {CONNECT_SECONDS:g} s"
            raise Unreachable(problem) from None
        except ssl.SSLCertVerificationError as error:
            reason = f"{address.url}: its certificate is not trusted: {error.verify_message}"
            raise Unreachable(reason) from None
        except OSError as error:
            raise Unreachable(f"{address.url}: {error.strerror or error}") from None

    def close(self) -> None:
        """End it, whatever has come; nobody hears of it any more, nor is it sent. Idempotent."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    # ---- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        if self._receiver is None:  # it was closed in the turns in which the connection came
            self._transport.abort()
            return
        self.was_sent = True
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data)
        if not self._has_more:
            self._read()

    def eof_received(self) -> bool:
        self._has_ended = True
        self._connection.receive_data(b"")
        if not self._has_more:
            self._read()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        problem = Broken(f"the connection broke: {exc}" if exc else CUT)
        if self._has_more:
            self._lost = problem  # what it had said before comes first
        else:
            self._end(problem)

    def _read(self) -> None:
        """Hand on what has come; of many small pieces a part, so that others have their turn."""
        num_events = 0
        try:
            while self._receiver is not None:
                num_events += 1
                if num_events > MAX_EVENTS_PER_TURN:
                    self._read_on_later()
                    return
                event = self._connection.next_event()
                if isinstance(event, h11.Data):
                    self._receiver.took(bytes(event.data))
                elif isinstance(event, h11.Response):
                    headers = dict(event.headers)
                    if headers.get(b"content-encoding", PLAIN).strip().lower() != PLAIN:
                        raise Broken("its reply is compressed, and was asked for as it is")
                    kind = headers.get(b"content-type", b"")
                    self._receiver.began(event.status_code, kind.decode("latin-1"))
                elif isinstance(event, h11.EndOfMessage):
                    self._end(None)
                elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                    return
        except RemoteProblem as problem:
            self._end(problem)
        except h11.RemoteProtocolError as error:
            self._end(Broken(CUT if self._has_ended else f"the reply is broken: {error}"))

    def _read_on_later(self) -> None:
        assert self._transport is not None
        self._has_more = True
        if not self._transport.is_closing():
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._has_more = False
        try:
            self._read()
        except Exception:  # in a callback of its own: no transport ends the connection for it
            self._end(Broken("what it says cannot be read"))
            raise
        if self._has_more or self._receiver is None or self._transport is None:
            return
        if self._lost is not None:
            self._end(self._lost)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, problem: RemoteProblem | None) -> None:
        receiver, self._receiver = self._receiver, None
        if self._transport is not None:
            self._transport.abort()
        if receiver is not None:
            receiver.ended(problem)


async def start(address: RemoteAddress, call: Call, receiver: Receiver) -> Exchange:
    """One that is on its way. Raises `Unreachable`, or `Misfit` for a key or certificates."""
    exchange = Exchange(address, call, receiver)
    await exchange.send()
    return exchange


def _encode(address: RemoteAddress, call: Call, connection: h11.Connection) -> bytes:
    body = b"" if call.body is None else orjson.dumps(call.body)
    headers = [
        ("Host", address.authority),
        ("User-Agent", "parley"),
        ("Accept", "text/event-stream, application/json"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    if (key := address.key()) is not None:
        headers.append(("Authorization", f"Bearer {key}"))
    if call.body is not None:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    request = h11.Request(
        method="GET" if call.body is None else "POST",
        target=address.target(call.path),
        headers=headers,
    )
    parts = [connection.send(request), connection.send(h11.Data(body)) if body else b""]
    return b"".join(part or b"" for part in [*parts, connection.send(h11.EndOfMessage())])


# ---- replies that come as a whole ---------------------------------------------------------------


@dataclass
class Whole:
    """Keeps a reply until it is complete."""

    max_bytes: int = MAX_REPLY_BYTES
    status: int = 0
    content: bytearray = field(default_factory=bytearray)
    done: "asyncio.Future[None]" = field(default_factory=lambda: _future())

    def began(self, status: int, content_type: str) -> None:
        self.status = status

    def took(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > self.max_bytes:
            raise Broken(f"a reply of more than {self.max_bytes} bytes")

    def ended(self, problem: RemoteProblem | None) -> None:
        if self.done.done():
            return
        if problem is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(problem)
            self.done.exception()  # who would have read it may be gone


async def ask(
    address: RemoteAddress, call: Call, seconds: float, max_bytes: int = MAX_REPLY_BYTES
) -> bytes:
    """The body of a whole reply with status 200.

    Raises `BadStatus` for another status, `Silent` when it takes longer, `Unreachable`, `Broken`.
    """
    whole = Whole(max_bytes)
    exchange = await start(address, call, whole)
    try:
        async with asyncio.timeout(seconds):
            await whole.done
    except TimeoutError:
        raise Silent(f"{call.path} has not answered for {seconds:g} s") from None
    finally:
        exchange.close()
    if whole.status != 200:
        message = message_of(whole.status, bytes(whole.content))
        raise BadStatus(whole.status, address.without_key(message))
    return bytes(whole.content)


def asking(address: RemoteAddress, seconds: float) -> Callable[[Call], Awaitable[Any]]:
    """Makes calls whose replies are JSON, or a word; raises as `ask`."""

    async def asked(call: Call) -> Any:
        content = await ask(address, call, seconds)
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            return content.decode(errors="replace")

    return asked


def message_of(status: int, content: bytes) -> str:
    """What an error says, in one of the forms that servers give it."""
    if 300 <= status < 400:
        return "it refers to another address, and redirects are not followed"
    try:
        body = orjson.loads(content[:MAX_MESSAGE_BYTES])
    except orjson.JSONDecodeError:
        return content[:200].decode(errors="replace")
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and name in body:
            body = body[name]
    return body if isinstance(body, str) else orjson.dumps(body).decode()


def _future() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return future
