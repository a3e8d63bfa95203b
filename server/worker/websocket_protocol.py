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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import OPEN, State

from server.protocol.close_codes import CloseCode
from server.worker.lingering import BAD_REQUEST, Lingering
from server.worker.websocket.framing import Framing, text_head
from server.worker.websocket.keepalive import Config
from server.worker.websocket.waiting import Inbox, Switch

UNRULY = (
    CloseCode.BAD_FRAMES,
    CloseCode.NO_FIRST_FRAME,
    CloseCode.SLOW_CONSUMER,
    CloseCode.TOO_MANY,
)
MESSAGE_SECONDS = 30.0  # from the first byte of a websocket message to its last
WEBSOCKET_PIECE_BYTES = 4 * 1024
CLOSE_INVALID_TEXT = 1007

GoingOn = Callable[[], Awaitable[None]]


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

    @property
    def can_write(self) -> bool:
        """Whether a text frame can leave now."""
        return (
            self.writable.is_set()
            and not self.close_sent
            and self.conn.state is OPEN
            and not self.transport.is_closing()
        )

    def write_frame(self, payload: bytes) -> bool:
        """Send a text frame past all layers; False, and nothing is sent, if it cannot leave now."""
        if not self.can_write:
            return False
        self.transport.write(text_head(len(payload)) + payload)
        return True

    def write_frames(self, payloads: Sequence[bytes]) -> None:
        """Send several at once, while one can leave."""
        parts = (part for payload in payloads for part in (text_head(len(payload)), payload))
        self.transport.write(b"".join(parts))

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
