"""uvicorn as every worker runs it: our protocol classes, and signals left to us."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from server.protocol.client_frames import MAX_MESSAGE_BYTES
from server.worker.http_protocol import HttpProtocol
from server.worker.middleware import MAX_HEADER_BYTES
from server.worker.websocket.keepalive import Config
from server.worker.websocket_protocol import WebSocketProtocol

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 3


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
) -> Config:
    """How every worker speaks HTTP and websockets, for any `app`."""
    return Config(
        app,
        ping_seconds=ping_seconds,
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
