"""uvicorn's protocol classes, made to answer everything: the bytes of HTTP and of websockets.

What the application cannot see or cannot do is here: a handshake that does not parse, frames that
come before it is answered, a close frame that must arrive, a jammed socket that must be cut.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from server.closing import CloseCode
from server.connection import MAX_MESSAGE_BYTES
from server.guard import MAX_HEADER_BYTES

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 3
UNRULY = (CloseCode.BAD_FRAMES, CloseCode.TOO_MANY, CloseCode.SLOW_CONSUMER)
LINGER_SECONDS = 2.0  # for a client to read why it was refused
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpProtocol(H11Protocol):
    """uvicorn's, which forgets what came in one packet with a handshake."""

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        early, _ = self.conn.trailing_data
        protocol = self.transport.get_protocol()
        if early and isinstance(protocol, WebSocketProtocol):
            protocol.data_received(early)


class Handshake(ServerProtocol):
    """websockets', without words in its refusals; the application chooses whom it talks to."""

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
        self.conn = Handshake(max_size=self.config.ws_max_size, logger=self.logger)
        self._early = b""  # came before the handshake was answered
        self._is_lingering = False

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self.transport.is_closing():
            return
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data
            self.transport.pause_reading()
            return
        super().data_received(data)
        if not self.handshake_initiated:  # the whole head was in `data`: it is not one
            self._refuse_handshake()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"]["parley.transport"] = {"transport": self.transport}

    async def send(self, message: Any) -> None:
        await super().send(message)
        if (
            message["type"] == "websocket.close"
            and message.get("code") in UNRULY
            and self.close_sent
        ):
            self._linger()  # it may send for ever, and parsing that would hold up everybody
        if self._early and self.handshake_complete and not self.close_sent:
            early, self._early = self._early, b""
            self.transport.resume_reading()
            self.data_received(early)

    def send_receive_event_to_app(self) -> None:
        # Bad UTF-8 and the client's own close in one packet: the close was answered already.
        with contextlib.suppress(InvalidState):
            super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """The close frame of an error is in `conn`: send it, then read until the client closes."""
        close = self.conn.close_sent
        assert close is not None
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
        )
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self._linger()

    def _linger(self) -> None:
        """Our close frame is out: swallow what still comes, unparsed, and cut soon."""
        self._is_lingering = True
        self.transport.write_eof()
        self.transport.resume_reading()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _refuse_handshake(self) -> None:
        self.handshake_complete = self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()) or BAD_REQUEST)
        self.transport.close()


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


def uvicorn_config(app: ASGIApp, ping_seconds: float) -> uvicorn.Config:
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
        proxy_headers=False,
        lifespan="on",
    )
