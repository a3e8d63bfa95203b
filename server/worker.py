"""One web process: `python -m server.worker`, started by the supervisor, never by hand.

Its configuration is the first line on stdin, and the rest of stdin is its tie to the supervisor:
each further line is a command, and the end of the stream means that the supervisor is gone. It
prints one line when it serves.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11
import msgspec
import structlog
import uvicorn
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from engine import AsyncLLM
from server.app import AppConfig, Worker
from server.closing import CloseCode
from server.connection import MAX_MESSAGE_BYTES
from server.guard import MAX_HEADER_BYTES
from server.limits import Limits
from server.logs import configure_logs
from sessions.errors import StoreRefused, StoreUnavailable
from sessions.store import SessionStore

logger = structlog.get_logger("server")

STORE_RETRY_SECONDS = 0.2
PING_SECONDS = 20.0
KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 3
UNRULY = (CloseCode.BAD_FRAMES, CloseCode.TOO_MANY, CloseCode.SLOW_CONSUMER)
LINGER_SECONDS = 2.0  # for a client to read why it was refused
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
EXIT_REFUSED = 3  # the store must not be used: restarting would not help


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor tells a worker on stdin."""

    replica: str
    listen_fd: int
    redis_url: str
    engine_address: str
    model_folder: str
    model_name: str
    token: str
    admin_token: str
    limits: Limits
    allowed_origins: tuple[str, ...] = ()
    check_host: bool = True
    drain_seconds: float = 30.0
    log_level: str = "info"
    log_format: str = "json"
    exited: tuple[str, ...] = ()  # workers that died before this one was started


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


async def run(config: WorkerConfig) -> int:
    """Serve until told to stop. Returns the exit code."""
    commands = await _open_stdin()
    try:
        store = await _open_store(config.redis_url)
    except StoreRefused as error:
        print(f"parley: {error}", file=sys.stderr)
        return EXIT_REFUSED
    engine = AsyncLLM.connect(
        config.engine_address, model=config.model_folder, served_model_name=config.model_name
    )
    worker = Worker(_app_config(config), store, engine)
    server = Server(_uvicorn_config(worker))
    listener = socket.socket(fileno=config.listen_fd)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.ready.wait()
    print('{"ready": true}', flush=True)
    for replica in config.exited:
        worker.hub.spawn(worker.orphans.adopt(replica))
    orphaned = await _obey(commands, worker, stop, serving)
    for open_server in server.servers:
        open_server.close()  # nobody new; who is here is told and waited for
    await worker.drain(0.0 if orphaned else config.drain_seconds)
    server.should_exit = True
    await serving
    engine.shutdown()
    return 0


async def _obey(
    commands: AsyncIterator[bytes], worker: Worker, stop: asyncio.Event, serving: asyncio.Task[None]
) -> bool:
    """Carry out the supervisor's commands until it says stop; True if it died instead."""

    async def read() -> None:
        async for line in commands:
            worker.hub.spawn(worker.obey(msgspec.json.decode(line)))

    reading = asyncio.create_task(read())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({reading, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    orphaned = reading.done() and not stop.is_set()
    for task in (reading, stopping):
        task.cancel()
    return orphaned


async def _open_stdin() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def _open_store(url: str) -> SessionStore:
    """Wait for Redis as long as it takes: it may be starting, too."""
    while True:
        try:
            return await SessionStore.open(url)
        except StoreUnavailable as error:
            logger.warning("store unavailable", error=str(error))
            await asyncio.sleep(STORE_RETRY_SECONDS)


def _app_config(config: WorkerConfig) -> AppConfig:
    return AppConfig(
        replica=config.replica,
        model=config.model_name,
        model_folder=Path(config.model_folder),
        token=config.token,
        admin_token=config.admin_token,
        limits=config.limits,
        allowed_origins=config.allowed_origins,
        check_host=config.check_host,
    )


def _uvicorn_config(worker: Worker) -> uvicorn.Config:
    return uvicorn.Config(
        worker.app,
        http=HttpProtocol,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
    )


def main() -> int:
    config = msgspec.json.decode(sys.stdin.buffer.raw.readline(), type=WorkerConfig)  # type: ignore[union-attr]
    configure_logs(config.log_level, config.log_format, config.replica)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config))


if __name__ == "__main__":
    sys.exit(main())
