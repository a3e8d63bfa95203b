"""uvicorn's protocol classes, made to answer everything: the bytes of HTTP and of websockets.

What the application cannot see or cannot do is here: a handshake that does not parse, frames that
come before it is answered, a close frame that must arrive, a jammed socket that must be cut.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import LoggerLike

from server.bounded_h11 import BoundedConnection
from server.closing import CloseCode, CloseConnection
from server.connection import MAX_MESSAGE_BYTES
from server.guard import BODY_SECONDS, MAX_HEADER_BYTES
from server.limits import TokenBucket

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 3
UNRULY = (
    CloseCode.BAD_FRAMES,
    CloseCode.NO_FIRST_FRAME,
    CloseCode.SLOW_CONSUMER,
    CloseCode.TOO_MANY,
)
LINGER_SECONDS = 2.0  # for a client to read why it was refused
LINGER_BYTES = 32 * 2**20  # twice the largest body; then what still comes is not even read
HEAD_SECONDS = 10.0  # for the whole head of a request
WRITE_SECONDS = 30.0  # a client that reads hardly anything of its answer is cut
MESSAGE_SECONDS = 30.0  # from the first byte of a websocket message to its last
IDLE_FRAMES_PER_S = 50  # pings, pongs and small fragments of one websocket; burst twice that
SMALL_FRAGMENT_BYTES = 1024
MAX_FRAMES_AFTER_CLOSE = 256  # then the client's own close frame is not looked for any more
# So much is parsed before it is asked whether the rest should be: a read may bring 250 KB.
HTTP_PIECE_BYTES = 8 * 1024
WEBSOCKET_PIECE_BYTES = 4 * 1024
CLOSE_INVALID_TEXT = 1007
FINAL_TEXT = 0x80 | Opcode.TEXT
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
REQUEST_TIMEOUT = BAD_REQUEST.replace(b"400 Bad Request", b"408 Request Timeout")
HEAD_TOO_LARGE = BAD_REQUEST.replace(b"400 Bad Request", b"431 Request Header Fields Too Large")


class HttpProtocol(H11Protocol):
    """uvicorn's, with deadlines, with time to read a refusal, and with nothing forgotten.

    uvicorn waits for ever for the rest of a head or of a body, resets the connection of a client
    that is still sending when it is refused, and forgets what came in one packet with a handshake.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = BoundedConnection(MAX_HEADER_BYTES)
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
            self._let_linger()
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
            self._let_linger()
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

    def _let_linger(self) -> None:
        if self.cycle is not None and self.cycle.transport is self.transport:
            self.cycle.transport = _LingeringTransport(self)  # type: ignore[assignment]

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
            seconds = BODY_SECONDS + LINGER_SECONDS
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


class Lingering:
    """We have said our last: swallow what still comes, unparsed, and cut soon.

    Closing with unread bytes is a reset, which destroys our last words on their way. But reading
    at full speed what somebody sends on purpose would take the processor from everybody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        transport.write_eof()
        transport.resume_reading()
        self.timer = loop.call_later(LINGER_SECONDS, transport.abort)
        self._transport = transport
        self._left = LINGER_BYTES

    def swallow(self, num_bytes: int) -> None:
        """So many have come."""
        self._left -= num_bytes
        if self._left <= 0 and not self._transport.is_closing():
            self._transport.pause_reading()


class FrameReader(StreamReader):
    """websockets', which tells whether a part of a frame has come."""

    is_in_frame = False

    def at_eof(self) -> Generator[None, None, bool]:
        """Called between two frames."""
        self.is_in_frame = False
        has_ended = yield from super().at_eof()
        self.is_in_frame = not has_ended
        return has_ended


class Framing(ServerProtocol):
    """websockets' parser, without words in its refusals, and with a limit for idle frames.

    The application chooses whom it talks to, and counts messages. Pings, pongs and fragments never
    reach it, so they are counted here: a fragment that is not small costs its sender enough.
    """

    def __init__(self, *, max_size: int | None, logger: LoggerLike) -> None:
        super().__init__(max_size=max_size, logger=logger)
        self.num_ended = 0  # messages, and control frames between two of them
        self._num_after_close = 0
        self._idle_frames = TokenBucket(IDLE_FRAMES_PER_S)
        self.reader = self._frames = FrameReader()
        self.parser = self.parse()
        next(self.parser)

    @property
    def is_message_open(self) -> bool:
        """Whether a message, or a frame, has begun and not ended."""
        return self._frames.is_in_frame or self.current_size is not None

    def recv_frame(self, frame: Frame) -> None:
        is_small_part = not frame.fin and len(frame.data) < SMALL_FRAGMENT_BYTES
        is_idle = frame.opcode in (Opcode.PING, Opcode.PONG) or is_small_part
        if is_idle and not self._idle_frames.take():
            self.refuse(CloseCode.TOO_MANY, "rate_limited;retry_after_ms=5000")
            raise ProtocolError("too many idle frames")  # so that parsing stops here
        self._num_after_close += self.state is State.CLOSING
        if self._num_after_close > MAX_FRAMES_AFTER_CLOSE:
            raise ProtocolError("too many frames after our close frame")
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None  # RFC 6455 §5.4: also between two fragments
        super().recv_frame(frame)
        if self.current_size is None:
            self.num_ended += 1

    def refuse(self, code: CloseCode, reason: str) -> None:
        """End the connection as for a frame that is wrong."""
        self.fail(code, reason)
        self.parser_exc = CloseConnection(code, reason)

    def reject(self, status: int, text: str) -> Response:
        response = super().reject(status, "")
        if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UPGRADE_REQUIRED):
            response.headers["Sec-WebSocket-Version"] = "13"
        return response

    def process_origin(self, headers: Headers) -> None:
        return None

    def process_subprotocol(self, headers: Headers) -> None:
        return None


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, with an answer to everything, and the transport within reach.

    A jammed socket must be cut, not closed. And a client must learn what it did wrong: uvicorn
    leaves a handshake that cannot be parsed without an answer, cannot refuse a frame before the
    handshake is answered, and closes behind an error at once, where unread bytes turn the close
    into a reset that destroys the close frame on its way.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = self._framing = Framing(max_size=self.config.ws_max_size, logger=self.logger)
        self._unread = bytearray()  # came, and is not parsed yet
        self._within_reach: dict[str, Any] = {"write": self.write_frame}
        self._lingering: Lingering | None = None
        self._message_timer: asyncio.TimerHandle | None = None
        self._num_ended = 0  # when the timer was started

    # uvicorn narrows the transport of asyncio.Protocol, and so must what overrides it.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # What the kernel does not take waits in the outbox, where text is merged.
        transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._lingering.swallow(len(data))
            return
        if self.transport.is_closing():
            return
        self._unread += data
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.pause_reading()
            return
        self._read()
        if not self.handshake_initiated:  # the whole head was in `data`: it is not one
            self._refuse_handshake()

    def _read(self) -> None:
        """Parse what is there, until a message waits for the application, or nobody reads on."""
        while self._unread and not (
            self.read_paused or self._is_lingering or self.transport.is_closing()
        ):
            if self.handshake_initiated and not self.handshake_complete:
                break
            piece = bytes(self._unread[:WEBSOCKET_PIECE_BYTES])
            del self._unread[:WEBSOCKET_PIECE_BYTES]
            super().data_received(piece)
        self._await_message()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_message_timer()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            self._within_reach["transport"] = self.transport
            scope["extensions"]["parley.transport"] = self._within_reach

    def write_frame(self, payload: bytes) -> bool:
        """Send a text frame past all layers; False, and nothing is sent, if it cannot leave now."""
        if (
            not self.writable.is_set()
            or self.close_sent
            or self.conn.state is not State.OPEN
            or self.transport.is_closing()
        ):
            return False
        self.transport.write(text_head(len(payload)) + payload)
        return True

    async def send(self, message: Any) -> None:
        await super().send(message)
        if not self.handshake_complete and self.transport.is_closing():
            self.handshake_complete = self.disconnected = True  # nobody is there to be answered
        if message["type"] == "websocket.accept":
            del self.request, self.response  # 4 KiB that nobody reads any more
        if (
            message["type"] == "websocket.close"
            and message.get("code") in UNRULY
            and self.close_sent
        ):
            self._linger()  # it may send for ever, and parsing that would hold up everybody
        if message["type"] == "websocket.accept" and self._unread and not self.close_sent:
            self.transport.resume_reading()
            self._read()
        elif message["type"] == "websocket.close":
            self._read()  # the client's own close frame may be there

    async def receive(self) -> Any:
        was_paused = self.read_paused
        message = await super().receive()
        if was_paused and not self.read_paused:  # what came meanwhile may be the rest
            self._cancel_message_timer()
            self._read()
        return message

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            # uvicorn would log a traceback, as often as a client likes.
            self.frames = []
            # With the client's own close in one packet, that was answered already.
            with contextlib.suppress(InvalidState):
                self.conn.send_close(CLOSE_INVALID_TEXT)
                self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        if not self._is_lingering:  # it came in one packet with what we closed for
            super().handle_ping()

    def handle_close(self, event: Frame) -> None:
        """uvicorn closes at once: with unread bytes that is a reset, which destroys our answer."""
        if self._is_lingering or self.transport.is_closing():
            return
        if not self.close_sent:
            close = self.conn.close_rcvd
            assert close is not None
            self.queue.put_nowait(
                {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
            )
            self.transport.write(b"".join(self.conn.data_to_send()))
        self._linger()

    def handle_parser_exception(self) -> None:
        """The close frame of an error is in `conn`: send it, then read until the client closes."""
        close = self.conn.close_sent
        assert close is not None
        self._within_reach.setdefault("closed_with", close.code)
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
        )
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self._linger()

    def keepalive_timeout(self) -> None:
        self._within_reach.setdefault("closed_with", int(CloseCode.INTERNAL))
        super().keepalive_timeout()

    @property
    def _is_lingering(self) -> bool:
        return self._lingering is not None

    def _linger(self) -> None:
        """Our close frame is out."""
        self._cancel_message_timer()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self._lingering = Lingering(self.loop, self.transport)
        self.close_timer = self._lingering.timer

    def _await_message(self) -> None:
        """Give the message that is on its way now, whether as one frame or many, a deadline."""
        if self._message_timer is not None and (
            self._framing.num_ended != self._num_ended or not self._framing.is_message_open
        ):
            self._cancel_message_timer()
        if self._message_timer is None and self._framing.is_message_open:
            self._num_ended = self._framing.num_ended
            self._message_timer = self.loop.call_later(MESSAGE_SECONDS, self._give_up_message)

    def _give_up_message(self) -> None:
        self._message_timer = None
        if self._is_lingering or self.transport.is_closing():
            return
        if self.read_paused:  # the rest may be there: we have not looked
            self._await_message()
        else:
            self._framing.refuse(CloseCode.BAD_FRAMES, "message_timeout")
            self.handle_parser_exception()

    def _cancel_message_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def _refuse_handshake(self) -> None:
        self.handshake_complete = self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()) or BAD_REQUEST)
        self.transport.close()


def _is_utf8(parts: Sequence[bytes]) -> bool:
    try:
        b"".join(parts).decode()
    except UnicodeDecodeError:
        return False
    return True


def text_head(size: int) -> bytes:
    """What stands in front of so many bytes of text that are one frame of the server's."""
    if size < 126:
        return bytes((FINAL_TEXT, size))
    if size < 1 << 16:
        return bytes((FINAL_TEXT, 126)) + size.to_bytes(2)
    return bytes((FINAL_TEXT, 127)) + size.to_bytes(8)


class Server(uvicorn.Server):
    """uvicorn's, with signals left to us: it would close every websocket at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def uvicorn_config(
    app: ASGIApp, ping_seconds: float, trusted_proxies: Sequence[str] = ()
) -> uvicorn.Config:
    """How every worker speaks HTTP and websockets, whatever `app` does."""
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=ping_seconds,
        ws_ping_timeout=ping_seconds,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        lifespan="on",
    )
