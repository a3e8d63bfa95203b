"""What the fuzz targets attack: the real protocol classes on a socket, with a small application.

Deadlines are shortened, so that a connection that is left open is noticed soon. Where the machine
is busy they may fall due before a client has had its turn: see `driver.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

from starlette.types import Receive, Scope, Send

from server.protocol.close_codes import CloseCode
from server.worker import http_protocol, lingering, websocket_protocol
from server.worker.middleware import Guard
from server.worker.uvicorn_server import Server, uvicorn_config

DEADLINE_SECONDS = 0.3
PATIENT_SECONDS = 5.0  # for a client that waits for its turn
MESSAGE = json.dumps({"type": "echo", "text": "hello"})


@dataclass
class Site:
    """A running server, and what went wrong in it that no client hears of."""

    url: str
    deadline_seconds: float
    token: str = "a-token-that-no-answer-may-hold"
    errors: list[str] = field(default_factory=list)
    thread: threading.Thread = field(default_factory=threading.Thread)  # of its event loop


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Paths that read a body, that do not, and that say much; a websocket that echoes."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{kind}"
            await send({"type": f"lifespan.{kind}.complete"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "chat.v1"})
        with contextlib.suppress(RuntimeError):  # it was closed below meanwhile
            if scope["path"] == "/bye":
                await send({"type": "websocket.close", "code": int(CloseCode.TOO_MANY)})
            while (message := await receive())["type"] != "websocket.disconnect":
                await asyncio.sleep(0)  # a connection of ours does so, too
                await send({"type": "websocket.send", "text": message.get("text") or "binary"})
    else:
        num_bytes = 0
        while scope["path"].startswith("/read"):
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        body = b"%d" % num_bytes
        if scope["path"].startswith("/much"):
            body *= 100_000
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Errors(logging.Handler):
    def __init__(self, site: Site) -> None:
        super().__init__(logging.ERROR)
        self._site = site

    def emit(self, record: logging.LogRecord) -> None:
        self._site.errors.append(self.format(record))


@contextlib.contextmanager
def serving(deadline_seconds: float = DEADLINE_SECONDS) -> Iterator[Site]:
    """The site, in a thread of its own, for as long as the context lasts."""
    guarded = Guard(app, hosts=None, index=b"", count_error=lambda code: None)
    config = uvicorn_config(guarded, ping_seconds=20.0)
    config.host, config.port, config.timeout_keep_alive = "127.0.0.1", 0, 1
    server = Server(config)
    site = Site("", deadline_seconds)
    is_ready = threading.Event()

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: site.errors.append(repr(context))
        )
        running = asyncio.create_task(server.serve())
        await server.ready.wait()
        is_ready.set()
        await running

    deadlines = (
        (http_protocol, "HEAD_SECONDS"),
        (http_protocol, "BODY_SECONDS"),
        (lingering, "LINGER_SECONDS"),
        (websocket_protocol, "MESSAGE_SECONDS"),
    )
    handler = _Errors(site)
    logging.getLogger().addHandler(handler)
    with contextlib.ExitStack() as stack:
        for module, name in deadlines:
            stack.enter_context(patch.object(module, name, deadline_seconds))
        site.thread = threading.Thread(target=lambda: asyncio.run(serve()))
        site.thread.start()
        try:
            is_ready.wait()
            port = server.servers[0].sockets[0].getsockname()[1]
            site.url = f"http://127.0.0.1:{port}"
            yield site
        finally:
            server.should_exit = True
            site.thread.join()
            logging.getLogger().removeHandler(handler)


def serving_patiently() -> contextlib.AbstractContextManager[Site]:
    """The site with deadlines that no client misses because of others."""
    return serving(PATIENT_SECONDS)
