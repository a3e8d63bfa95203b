"""`Link`: the connection of `parley chat`, which comes back by itself until the server says no.

It knows no frames but `ping` and `connection.draining`, and holds nothing back: what must survive a
reconnect is kept by `ChatClient`, and `on_open` is where it is sent again.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from server.terminal.chat.retries import MOST_LIMIT_SECONDS, Retries, close_policy
from sessions.background import start

Frame = dict[str, Any]
Address = Callable[[], tuple[str, str]]  # URL of the server and token, as they are now

PING_SECONDS, PONG_SECONDS = 15.0, 10.0
MAX_FRAME_BYTES = 16 * 1024 * 1024


class Link:
    """One connection after another."""

    def __init__(
        self,
        address: Address,
        *,
        on_open: Callable[[], None],
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.is_open = False
        self.lost_at: float | None = time.monotonic()  # since when there is none
        self.has_opened = False
        self._address = address
        self._on_open, self._on_frame, self._on_lost = on_open, on_frame, on_lost
        self._retries = Retries()
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._draining_seconds: float | None = None

    def send(self, frame: Frame) -> None:
        """Send a frame if there is a connection; otherwise nothing happens."""
        if self.is_open:
            self._outgoing.put_nowait(json.dumps(frame))

    async def run(self) -> int:
        """Until the server closes for good. Returns the code of that close."""
        while True:
            self._draining_seconds = None
            code, reason = await self._try()
            now = time.monotonic()
            self._retries.closed(now)
            if self.is_open:
                self.is_open, self.lost_at = False, now
                self._on_lost()
            policy = close_policy(code, reason)
            put_off = self._retries.num_put_off
            if not policy.reconnects or put_off >= (policy.max_put_off or put_off + 1):
                return code
            if self._draining_seconds is not None:
                delay = self._draining_seconds
            else:
                asked = policy.after_seconds * random.uniform(1, 1.25)
                delay = max(asked, self._retries.delay(now, policy.is_loss))
            await asyncio.sleep(delay)

    async def _try(self) -> tuple[int, str]:
        """One connection, as long as it lasts. Returns how it was closed."""
        url, token = self._address()
        limit = self._retries.began(time.monotonic())
        try:
            socket = await connect(
                url.replace("http", "ws", 1) + "/v1/ws",
                subprotocols=[Subprotocol("chat.v1")],
                additional_headers={"Authorization": f"Bearer {token}"},
                open_timeout=min(limit, MOST_LIMIT_SECONDS),
                close_timeout=1,
                ping_interval=PING_SECONDS,
                ping_timeout=PONG_SECONDS,
                max_size=MAX_FRAME_BYTES,
                compression=None,
                proxy=None,  # the token is for this machine
            )
        except InvalidStatus as error:
            refused = 400 <= error.response.status_code < 500
            return (4400 if refused else 1006), ""
        except (OSError, InvalidHandshake, ConnectionClosed):  # a timeout is an OSError
            return 1006, ""
        writer = start(self._write(socket))
        try:
            return await self._read(socket)
        finally:
            writer.cancel()
            await asyncio.gather(writer, socket.close(), return_exceptions=True)

    async def _read(self, socket: ClientConnection) -> tuple[int, str]:
        self._retries.opened(time.monotonic())
        self._outgoing = asyncio.Queue()
        self.is_open = self.has_opened = True
        self.lost_at = None
        self.send({"type": "ping"})  # the server closes a connection that says nothing for 10 s
        self._on_open()
        try:
            while True:
                frame = json.loads(await socket.recv())
                if frame["type"] == "connection.draining":
                    self._draining_seconds = frame.get("reconnect_after_ms", 0) / 1000
                self._on_frame(frame)
        except ConnectionClosed:
            return socket.close_code or 1006, socket.close_reason or ""

    async def _write(self, socket: ClientConnection) -> None:
        try:
            while True:
                await socket.send(await self._outgoing.get())
        except ConnectionClosed:
            pass  # `_read` sees it too, and says how
