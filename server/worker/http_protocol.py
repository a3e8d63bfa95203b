"""uvicorn's HTTP protocol class, made to answer everything, in time, with bounds.

What the application cannot see or cannot do is here and in websocket_protocol.py: a head that does
not parse or does not end, a body that nobody reads, a jammed socket that must be cut.
"""

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from server.worker import lingering
from server.worker.bounded_h11 import BoundedConnection
from server.worker.lingering import BAD_REQUEST, Lingering
from server.worker.middleware import BODY_SECONDS, MAX_HEADER_BYTES
from server.worker.websocket_protocol import WebSocketProtocol

HEAD_SECONDS = 10.0  # for the whole head of a request
WRITE_SECONDS = 30.0  # a client that reads hardly anything of its answer is cut
# So much is parsed before it is asked whether the rest should be: a read may bring 250 KB.
HTTP_PIECE_BYTES = 8 * 1024
REQUEST_TIMEOUT = BAD_REQUEST.replace(b"400 Bad Request", b"408 Request Timeout")
HEAD_TOO_LARGE = BAD_REQUEST.replace(b"400 Bad Request", b"431 Request Header Fields Too Large")


class HttpProtocol(H11Protocol):
    """uvicorn's, with deadlines, with time to read a refusal, and with nothing forgotten.

    uvicorn waits for ever for the rest of a head or of a body, resets the connection of a client
    that is still sending when it is refused, and forgets what came in one packet with a handshake.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: BoundedConnection = BoundedConnection(MAX_HEADER_BYTES)
        self._is_over = False  # refused, or a websocket by now
        self._lingering: Lingering | None = None
        self._awaited: type | None = None  # h11's state of a client that is due
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # uvicorn narrows the transport of asyncio.Protocol, and so must what overrides it.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timers()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), HTTP_PIECE_BYTES):
            if self._is_over:
                self._pass_on(data[start:])
                if self._lingering is not None:
                    self._lingering.swallow(len(data) - start)
                return
            super().data_received(data[start : start + HTTP_PIECE_BYTES])
            self._equip()
        self._await_client()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._cancel_timers()
        self._is_over = True
        super().handle_websocket_upgrade(event)
        early, _ = self.conn.trailing_data
        if early:
            self._pass_on(early)

    def _pass_on(self, data: bytes) -> None:
        """What came in one packet with a handshake is the websocket's."""
        protocol = self.transport.get_protocol()
        if isinstance(protocol, WebSocketProtocol):
            protocol.data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Called where h11 refuses what came; a long head gets the status that `Guard` gives."""
        error = sys.exception()
        is_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431
        if self.cycle is not None and self.cycle.response_started and self._is_answering:
            self.close()  # half an answer is out: nothing can follow it
        else:
            self._refuse(HEAD_TOO_LARGE if is_large else BAD_REQUEST)

    def on_response_complete(self) -> None:
        if not self._is_over:
            super().on_response_complete()
            self._equip()
            if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
                self._await_client()  # a part of the next request had come already

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def close(self) -> None:
        """Close; a client that is still sending gets the time to read its answer."""
        if self.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            self._cancel_timers()
            self._is_over = True
            self._lingering = Lingering(self.loop, self.transport)
        else:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _equip(self) -> None:
        """Give a request that has just come what uvicorn does not."""
        if self.cycle is not None and self.cycle.transport is self.transport:
            self.cycle.transport = _LingeringTransport(self)  # type: ignore[assignment]
            scope: Any = self.cycle.scope  # ASGI says that extensions are dictionaries
            scope["extensions"] = {"parley.chunks": _Chunks(self, self.cycle)}

    def _await_client(self) -> None:
        """Give what the client owes us now, a head or a body, a deadline as a whole."""
        awaited: type | None = self.conn.their_state
        if awaited not in (h11.IDLE, h11.SEND_BODY) or self._is_over:
            awaited = None
        if awaited is self._awaited:
            return
        self._awaited = awaited
        if self._read_timer is not None:
            self._read_timer.cancel()
        if awaited is h11.IDLE:
            self._read_timer = self.loop.call_later(HEAD_SECONDS, self._give_up_head)
        elif awaited is h11.SEND_BODY:  # one that is being read has its 408 by then
            seconds = BODY_SECONDS + lingering.LINGER_SECONDS
            self._read_timer = self.loop.call_later(seconds, self.transport.abort)

    def _give_up_head(self) -> None:
        if self.conn.trailing_data[0]:
            self._refuse(REQUEST_TIMEOUT)
        else:
            self.transport.close()

    def _refuse(self, answer: bytes) -> None:
        """Answer in place of the application, and hear no more."""
        self._cancel_timers()
        self._is_over = True
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False  # it would be written after the end
            self.cycle.message_event.set()
        self.transport.write(answer)
        self._lingering = Lingering(self.loop, self.transport)

    def _cancel_timers(self) -> None:
        self._unset_keepalive_if_required()
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()


class _LingeringTransport:
    """What a request does with its transport; closing is the protocol's affair."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close


class _Chunks:
    """The parts of one streamed body, past all layers: a chunk each, framed as h11 does it.

    A body that has a length, or a client that knows no chunks, has to go through h11.
    """

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: HttpProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    @property
    def is_open(self) -> bool:
        """Whether a part can leave now."""
        cycle, protocol = self._cycle, self._protocol
        return (
            protocol.conn.sends_chunks
            and not protocol._is_over
            and not cycle.response_complete
            and not cycle.disconnected
            and not protocol.flow.write_paused
            and not protocol.transport.is_closing()
        )

    def write(self, part: bytes) -> None:
        """Send one, while it is open; an empty one would be the end."""
        self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
