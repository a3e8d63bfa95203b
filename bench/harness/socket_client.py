"""A websocket client that costs little: thousands of them share one event loop with a clock.

It notes when each frame came, answers pings, and decodes JSON only when somebody asks. What a
client library does besides would be measured as the server's delay.
"""

import asyncio
import base64
import json
import os
import struct
import time
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.end_to_end.frames.raw import CLOSE, PING, PONG, TEXT, frame, upgrade
from tests.end_to_end.site.harness import Server

ANSWER_SECONDS = 300.0  # as long as for other engines: the last of many chats waits for all prompts


class Received(NamedTuple):
    """A text frame, and when (`time.monotonic()`) its last byte was read."""

    at: float
    payload: bytes

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.payload))


class BenchSocket(asyncio.Protocol):
    """One connection to a worker. `open` returns it when `connection.ready` has come."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.close_code: int | None = None
        self._next = 0
        self._buffer = b""
        self._is_upgraded = False
        self._arrived = asyncio.Event()
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls, server: Server, token: str | None = None, source: str | None = None
    ) -> Self:
        """Connect, from `source` if given, as the user of `token` or else the local one."""
        address = urlsplit(server.url)
        assert address.hostname is not None and address.port is not None
        local = None if source is None else (source, 0)
        _, socket = await asyncio.get_running_loop().create_connection(
            cls, address.hostname, address.port, local_addr=local
        )
        headers = {"Authorization": f"Bearer {token or server.token}"}
        socket._transport.write(upgrade(server, headers))
        await socket.next("connection.ready")
        return socket

    def send(self, kind: str, **fields: Any) -> None:
        text = json.dumps({"type": kind, **fields})
        self._transport.write(frame(TEXT, text.encode()))

    async def next(self, *kinds: str) -> Received:
        """The next frame of one of these types; those before it are passed over."""
        return await self._find(*(f'"type":"{kind}"'.encode() for kind in kinds))

    async def reply(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a frame and return its direct reply."""
        event_id = random_key()
        self.send(kind, event_id=event_id, **fields)
        return (await self._find(f'"event_id":"{event_id}"'.encode())).body

    async def _find(self, *markers: bytes) -> Received:
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                while self._next < len(self.received):
                    found = self.received[self._next]
                    self._next += 1
                    if any(marker in found.payload for marker in markers):
                        return found
                    assert b'"type":"error"' not in found.payload, found.payload
                if self.close_code is not None:
                    raise ConnectionError(f"closed with {self.close_code}")
                self._arrived.clear()
                await self._arrived.wait()

    async def new_session(self) -> str:
        created = await self.reply("session.create", idempotency_key=random_key())
        assert created["type"] == "session.created", created
        return str(created["session"]["id"])

    async def ask(self, session_id: str, text: str, **settings: Any) -> str:
        """Begin an answer; its response's id. Raises `ConnectionError` if it is refused."""
        created = await self.reply(
            "response.create",
            session_id=session_id,
            idempotency_key=random_key(),
            input=text,
            settings=settings,
        )
        if created["type"] == "error":
            raise ConnectionError(f"refused: {created['error']}")
        return str(created["response"]["id"])

    def pass_over(self) -> None:
        """Wait for nothing that has come already; it stays in `received`."""
        self._next = len(self.received)

    def forget(self) -> None:
        """Drop what was looked at: of many answers it is much."""
        del self.received[: self._next]
        self._next = 0

    def close(self) -> None:
        self._transport.abort()

    # ---- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.close_code = self.close_code or 1006
        self._arrived.set()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._buffer += data
        if not self._is_upgraded:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 101 "), head
            self._is_upgraded, self._buffer = True, rest
        place = 0
        while (end_of_frame := self._take(place, now)) is not None:
            place = end_of_frame
        self._buffer = self._buffer[place:]
        self._arrived.set()

    def _take(self, place: int, now: float) -> int | None:
        """Take the frame that begins at `place`; where it ends, or None if it is not all there."""
        data = self._buffer
        if len(data) < place + 2:
            return None
        opcode, size, start = data[place] & 0x0F, data[place + 1], place + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            if len(data) < start:
                return None
            size = int.from_bytes(data[place + 2 : start])
        if len(data) < start + size:
            return None
        payload = data[start : start + size]
        if opcode == TEXT:
            self.received.append(Received(now, payload))
        elif opcode == PING:
            self._transport.write(frame(PONG, payload))
        elif opcode == CLOSE:
            self.close_code = struct.unpack("!H", payload[:2])[0] if payload else 1005
        return start + size


def random_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(12)).decode()
