"""HTTP and websockets by hand: bytes out, bytes in, because client libraries refuse to misbehave.

What the server answers is searched for tracebacks, paths and secrets wherever it is read.
"""

import asyncio
import base64
import contextlib
import json
import os
import random
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import urlencode, urlsplit

from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
LOST = 1006  # what a browser reports when no close frame came
NO_STATUS = 1005

_INDISCREET = re.compile(
    rb"Traceback|site-packages|\.py\b|File \"|/tmp/|" + re.escape(str(ROOT).encode())
)


class Target(Protocol):
    """Whom to talk to: a `Server`, or anything else that has an address and a token."""

    url: str
    token: str


class Answer(NamedTuple):
    """An HTTP answer; `status` 0 means that the connection ended without one."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def assert_discreet(server: Target, answer: bytes) -> None:
    """No traceback, path or secret in what a client is sent."""
    assert not _INDISCREET.search(answer), answer[:500]
    assert server.token.encode() not in answer


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    announced: int | None = None,
) -> bytes:
    """One websocket frame of a client; `announced` lies about the length, in its 8-byte form."""
    size = len(payload) if announced is None else announced
    head = bytes([fin << 7 | rsv << 4 | opcode])
    mask_bit = masked << 7
    if announced is not None or size > 0xFFFF:
        head += bytes([mask_bit | 127]) + struct.pack("!Q", size)
    elif size > 125:
        head += bytes([mask_bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([mask_bit | size])
    # An all-zero mask is a mask, and leaves the payload readable in a failing test.
    return head + (bytes(4) if masked else b"") + payload


def close_frame(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def request(
    server: Target,
    method: str = "GET",
    path: str = "/",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    host: bool = True,
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    if host:
        lines.append(f"Host: {urlsplit(server.url).netloc}")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def upgrade(
    server: Target,
    changed: Mapping[str, str | list[str] | None] | None = None,
    *,
    method: str = "GET",
    path: str = "/v1/ws",
) -> bytes:
    """A handshake with our token; `changed` replaces, repeats (list) or drops (None) headers."""
    headers: dict[str, str | list[str] | None] = {
        "Host": urlsplit(server.url).netloc,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": "chat.v1",
        "Authorization": f"Bearer {server.token}",
        **(changed or {}),
    }
    pairs = [
        (name, value)
        for name, values in headers.items()
        if values is not None
        for value in ([values] if isinstance(values, str) else values)
    ]
    return request(server, method, path, pairs, host=False)


class RawSocket:
    """One TCP connection, from `source` if given. Use as an async context manager.

    `way` says otherwise where the server's address leads, and how: options of asyncio.
    """

    def __init__(self, server: Target, source: str | None = None, **way: Any) -> None:
        self._server = server
        self._way = way
        self._source = None if source is None else (source, 0)
        self._closed_with: int | None = None

    async def __aenter__(self) -> Self:
        address = urlsplit(self._server.url)
        way = {"host": address.hostname, "port": address.port, **self._way}
        self._reader, self._writer = await asyncio.open_connection(
            **way, limit=2**24, local_addr=self._source
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def send(self, data: bytes) -> None:
        """Write everything; a peer that is gone by then is seen when its answer is read."""
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def ask(self, data: bytes) -> Answer:
        """Send a request and read its answer."""
        await self.send(data)
        return await self.answer(head=data.startswith(b"HEAD"))

    async def answer(self, *, head: bool = False, seconds: float = PATIENCE) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                raw = await self._reader.readuntil(b"\r\n\r\n")
                status, headers = _parse_head(raw)
                size = int(dict(headers).get("content-length", "0"))
                body = await self._reader.readexactly(0 if head or status == 101 else size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(0, [], b"")
        assert_discreet(self._server, raw + body)
        return Answer(status, headers, body)

    async def upgrade(self, changed: Mapping[str, str | list[str] | None] | None = None) -> Answer:
        return await self.ask(upgrade(self._server, changed))

    async def send_frame(self, kind: str, **fields: Any) -> None:
        await self.send(frame(TEXT, json.dumps({"type": kind, **fields}).encode()))

    async def next(self, *kinds: str) -> dict[str, Any]:
        """The next text frame of one of these types."""
        while True:
            opcode, payload = await self._read_frame()
            assert opcode != CLOSE, payload
            if opcode == TEXT and (body := json.loads(payload))["type"] in kinds:
                return dict(body)

    async def next_ping(self) -> bytes:
        """What the next ping holds."""
        while True:
            opcode, payload = await self._read_frame()
            if opcode == PING:
                return payload

    async def next_or_close(self) -> dict[str, Any] | tuple[int, str]:
        """The next text frame, or the code and reason of the server's close frame."""
        while True:
            opcode, payload = await self._read_frame()
            if opcode == TEXT:
                return dict(json.loads(payload))
            if opcode == CLOSE:
                return _close_reason(payload)

    async def closed(self, seconds: float = PATIENCE) -> tuple[int, str]:
        """Code and reason of the server's close frame; `LOST` when there is none."""
        try:
            while True:
                opcode, payload = await self._read_frame(seconds)
                if opcode == CLOSE:
                    return _close_reason(payload)
        except (asyncio.IncompleteReadError, ConnectionError):
            return LOST, ""

    async def ended(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(65536):
                    pass

    async def rest(self, seconds: float = PATIENCE) -> bytes | None:
        """All that still comes; None if the connection is left open for so long."""
        received = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while part := await self._reader.read(65536):
                    received += part
        except TimeoutError:
            return None
        except ConnectionError:
            pass
        return bytes(received)

    async def _read_frame(self, seconds: float = PATIENCE) -> tuple[int, bytes]:
        async with asyncio.timeout(seconds):
            first, size = await self._reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
            payload = await self._reader.readexactly(size)
        assert_discreet(self._server, payload)
        return first & 0x0F, payload


async def ask(server: Target, data: bytes, source: str | None = None) -> Answer:
    """One request on a connection of its own."""
    async with RawSocket(server, source) as socket:
        return await socket.ask(data)


def elsewhere() -> str:
    """A loopback address of its own, for wrong credentials: they are counted by address."""
    return ".".join(str(part) for part in (127, *random.choices(range(1, 255), k=3)))


async def log_in(server: Target) -> str:
    """A `Cookie` header, by the way that a browser gets one."""
    return cookie_of(await submit_login(server, await login_path(server)))


async def submit_login(
    server: Target,
    path: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    source: str | None = None,
    **fields: str,
) -> Answer:
    """Send the form of a login link's page."""
    body = urlencode({"code": path.partition("code=")[2], **fields}).encode()
    own = [
        ("Origin", f"http://{urlsplit(server.url).netloc}"),
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Content-Length", str(len(body))),
    ]
    return await ask(server, request(server, "POST", "/login", [*own, *headers], body), source)


async def login_path(server: Target) -> str:
    """A path with a fresh one-time code."""
    headers = [("Authorization", f"Bearer {server.token}")]
    answer = await ask(server, request(server, "POST", "/v1/login-codes", headers))
    assert answer.status == 201, answer
    return str(json.loads(answer.body)["path"])


def cookie_of(answer: Answer) -> str:
    """What a browser sends back after this answer."""
    set_cookie = answer.header("set-cookie")
    assert set_cookie is not None, answer
    return set_cookie.partition(";")[0]


def _close_reason(payload: bytes) -> tuple[int, str]:
    code = struct.unpack("!H", payload[:2])[0] if payload else NO_STATUS
    return code, payload[2:].decode()


def _parse_head(raw: bytes) -> tuple[int, list[tuple[str, str]]]:
    status_line, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return int(status_line.split()[1]), [(name.lower(), value.strip()) for name, _, value in pairs]
