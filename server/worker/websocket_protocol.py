"""uvicorn's websocket protocol class, made to answer everything.

What the application cannot see or cannot do is here: a handshake that does not parse, frames that
come before it is answered, a close frame that must arrive, a message that does not end.

There are thousands of these, mostly idle, so an idle one holds little: slots for what uvicorn and
websockets keep in dictionaries, a parser only while there is something to parse, one timer for the
pings of all, and nothing of the handshake.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN, State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import LoggerLike

from server.access.rates import TokenBucket
from server.protocol.close_codes import CloseCode, CloseConnection
from server.worker.lingering import BAD_REQUEST, Lingering

UNRULY = (
    CloseCode.BAD_FRAMES,
    CloseCode.NO_FIRST_FRAME,
    CloseCode.SLOW_CONSUMER,
    CloseCode.TOO_MANY,
)
MESSAGE_SECONDS = 30.0  # from the first byte of a websocket message to its last
IDLE_FRAMES_PER_S = 50  # pings, pongs and small fragments of one websocket; burst twice that
SMALL_FRAGMENT_BYTES = 1024
MAX_FRAMES_AFTER_CLOSE = 256  # then the client's own close frame is not looked for any more
WEBSOCKET_PIECE_BYTES = 4 * 1024
CLOSE_INVALID_TEXT = 1007
FINAL_TEXT = 0x80 | Opcode.TEXT
TWO_BYTES_OF_SIZE = bytes((FINAL_TEXT, 126))
EIGHT_BYTES_OF_SIZE = bytes((FINAL_TEXT, 127))
PINGS_PER_TURN = 50  # of those that are due: then the others have their turn

GoingOn = Callable[[], Awaitable[None]]


class Keepalive:
    """Pings all websockets of a worker, each once in `seconds`, by one timer for all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._protocols: deque[WebSocketProtocol] = deque()  # who is due first is the first
        self._timer: asyncio.TimerHandle | None = None

    def add(self, protocol: "WebSocketProtocol") -> None:
        """It has said at `ping_sent_at` that it lives, and is due `seconds` later."""
        self._protocols.append(protocol)
        if self._timer is None:
            self._await_first()

    def _await_first(self) -> None:
        first = self._protocols[0]
        self._timer = first.loop.call_at(first.ping_sent_at + self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        for _ in range(min(PINGS_PER_TURN, len(self._protocols))):
            first = self._protocols[0]
            if first.ping_sent_at + self._seconds > first.loop.time():
                break
            self._protocols.popleft()
            if first.keep_alive():
                self._protocols.append(first)
        if self._protocols:
            self._await_first()


class Config(uvicorn.Config):
    """uvicorn's, with what its websockets share."""

    def __init__(self, *args: Any, ping_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.keepalive = Keepalive(ping_seconds)


class Inbox:
    """What the application will receive, and the application that waits for it.

    With only what uvicorn calls of asyncio's queue, which takes 3 KiB when it is empty.
    """

    __slots__ = ("_messages", "_waiter")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._waiter: asyncio.Future[None] | None = None

    def qsize(self) -> int:
        return len(self._messages)

    def empty(self) -> bool:
        return not self._messages

    def put_nowait(self, message: Any) -> None:
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """The next message. One caller at a time."""
        while not self._messages:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._messages.pop(0)


class Switch:
    """What uvicorn calls of asyncio's event, which takes 0.7 KiB: is there room to write?"""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        while not self._is_set:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters = [*(self._waiters or ()), waiter]
            await waiter


class FrameReader(StreamReader):
    """websockets' own, which also says whether a part of a frame has come."""

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

    __slots__ = (
        "_frames",
        "_idle_frames",
        "_num_after_close",
        "_state",
        "accept_called",
        "available_extensions",
        "available_subprotocols",
        "close_rcvd",
        "close_rcvd_then_sent",
        "close_sent",
        "current_size",
        "debug",
        "eof_sent",
        "events",
        "expect_continuation_frame",
        "extensions",
        "handshake_exc",
        "id",
        "logger",
        "max_fragment_size",
        "max_message_size",
        "num_ended",
        "origin",
        "origins",
        "parser",
        "parser_exc",
        "reader",
        "side",
        "subprotocol",
        "writes",
    )

    def __init__(self, *, max_size: int | None, logger: LoggerLike) -> None:
        super().__init__(max_size=max_size, logger=logger)
        self.num_ended = 0  # messages, and control frames between two of them
        self._num_after_close = 0
        self._idle_frames = TokenBucket(IDLE_FRAMES_PER_S)
        self._frames: FrameReader | None = None  # none between two frames
        self._begin_parsing()

    def _begin_parsing(self) -> None:
        self.reader = self._frames = FrameReader()
        self.parser = self.parse()
        next(self.parser)

    @property
    def is_message_open(self) -> bool:
        """Whether a message, or a frame, has begun and not ended."""
        return self.current_size is not None or (
            self._frames is not None and self._frames.is_in_frame
        )

    def receive_data(self, data: bytes | bytearray) -> None:
        if self._frames is None:
            self._begin_parsing()
        super().receive_data(data)
        self.rest()

    def rest(self) -> None:
        """Between two frames, let the parser go: there are five generators in it."""
        if self.state is State.OPEN and self._frames is not None and not self._frames.is_in_frame:
            self._frames = None
            del self.reader, self.parser

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

    def fail(self, code: int, reason: str = "") -> None:
        if self._frames is None:
            self._begin_parsing()  # it is told to drop what still comes
        super().fail(code, reason)

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
    handshake is answered, and closes right after an error, where unread bytes turn the close
    into a reset that destroys the close frame on its way.
    """

    __slots__ = (
        "_framing",
        "_go_on",
        "_lingering",
        "_message_timer",
        "_num_ended",
        "_unread",
        "app",
        "app_state",
        "asgi_version",
        "client",
        "close_sent",
        "close_timeout",
        "close_timer",
        "closed_with",
        "config",
        "conn",
        "connections",
        "curr_msg_data_type",
        "default_headers",
        "disconnected",
        "frames",
        "handshake_complete",
        "handshake_initiated",
        "initial_response",
        "last_ping_rtt",
        "logger",
        "loop",
        "on_room",
        "pending_ping_payload",
        "ping_interval",
        "ping_sent_at",
        "ping_timeout",
        "ping_timer",
        "pong_timer",
        "queue",
        "read_paused",
        "request",
        "response",
        "root_path",
        "scheme",
        "scope",
        "server",
        "tasks",
        "transport",
        "writable",
    )
    config: Config

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn declares a queue and an event of asyncio's, and calls only what these two have.
        # mypy is silenced for both, because subclasses of asyncio's would be as large as they are.
        self.queue = Inbox()  # type: ignore[assignment]
        self.writable = Switch()  # type: ignore[assignment]
        self.writable.set()
        self._go_on: GoingOn | None = None
        self.conn = self._framing = Framing(max_size=self.config.ws_max_size, logger=self.logger)
        self._unread = bytearray()  # came, and is not parsed yet
        self.closed_with: int | None = None  # the code of a close that came from down here
        self.on_room: Callable[[], None] | None = None  # called once, when a full socket has some
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
            scope["extensions"]["parley.transport"] = self

    def write_frame(self, payload: bytes) -> bool:
        """Send a text frame past all layers; False, and nothing is sent, if it cannot leave now."""
        if (
            not self.writable.is_set()
            or self.close_sent
            or self.conn.state is not OPEN
            or self.transport.is_closing()
        ):
            return False
        self.transport.write(text_head(len(payload)) + payload)
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        if (on_room := self.on_room) is not None:
            self.on_room = None
            on_room()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if not self.handshake_complete and self.transport.is_closing():
            self.handshake_complete = self.disconnected = True  # nobody is there to be answered
        if message["type"] == "websocket.accept":
            # 4 KiB that nobody reads any more; the scope goes when the application has returned.
            del self.request, self.response
            self.server = self.client = None
            self._framing.rest()
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

    def go_on_with(self, going_on: GoingOn) -> None:
        """What the application does after the handshake: called when it has returned.

        So its layers, twelve coroutines and the scope, do not stay for as long as the websocket.
        """
        self._go_on = going_on

    async def run_asgi(self) -> None:
        self.app = self._run_app
        await super().run_asgi()

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app = self.config.loaded_app
        await app(scope, receive, send)
        if (go_on := self._go_on) is not None:
            del self.scope, scope, receive, send
            self._go_on = None
            await go_on()

    def wake(self) -> None:
        """Let `receive` return, though nothing has come: by a message that ASGI does not know."""
        # mypy knows only the messages of ASGI, to which this one does not belong.
        self.queue.put_nowait({"type": "parley.wake"})  # type: ignore[arg-type, misc]

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
        self._note_close(close.code)
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
        )
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self._linger()

    def start_keepalive(self) -> None:
        """All are pinged by one timer, and the time for a pong ends where the next ping is due."""
        if self.ping_interval:
            self.ping_sent_at = self.loop.time()
            self.config.keepalive.add(self)

    def keep_alive(self) -> bool:
        """Send a ping, or close if the last one went unanswered; False at the end."""
        if (
            self.close_sent
            or self.disconnected
            or self._is_lingering
            or self.transport.is_closing()
            or self.conn.state is not State.OPEN
        ):
            return False
        if self.pending_ping_payload is not None:
            self.keepalive_timeout()
            return False
        # Random, so that a pong that nobody asked for is not taken for its answer.
        self.pending_ping_payload = random.randbytes(4)
        self.ping_sent_at = self.loop.time()
        self.conn.send_ping(self.pending_ping_payload)
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def keepalive_timeout(self) -> None:
        self._note_close(int(CloseCode.INTERNAL))
        super().keepalive_timeout()

    def _note_close(self, code: int) -> None:
        if self.closed_with is None:
            self.closed_with = code

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
        return TWO_BYTES_OF_SIZE + size.to_bytes(2)
    return EIGHT_BYTES_OF_SIZE + size.to_bytes(8)
