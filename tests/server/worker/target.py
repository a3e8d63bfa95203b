"""The small application of the tests of the protocol classes."""

import asyncio
import json
import time
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from server.worker import websocket_protocol
from server.worker.websocket_protocol import WebSocketProtocol

BIG = 16 * 2**20  # more than the buffers between two sockets hold
late_writes: list[bool] = []  # whether frames could be written to websockets that had ended
was_open: list[tuple[bool, bool, bool]] = []  # the way past all layers: at first, then, at the end
waiting: list[int] = []  # bytes that a jammed client leaves in the server
handed_over: list[WebSocketProtocol] = []  # by the path /over, the newest last


@dataclass
class Target:
    url: str
    token: str = "a-token-that-no-answer-may-hold"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """A websocket that echoes; paths that read nothing, say much, or refuse."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{kind}"
            await send({"type": f"lifespan.{kind}.complete"})
    elif scope["type"] == "websocket":
        await _echo(scope, receive, send)
    elif scope["path"].startswith("/chunks"):
        await _stream(scope, receive, send)
    else:
        status = 413 if scope["path"] == "/refuse" else 200
        while scope["path"] == "/read" and (await receive()).get("more_body", False):
            pass
        body = bytes(BIG) if scope["path"] == "/big" else b"short"
        headers = [(b"content-length", str(len(body)).encode())]
        if status == 413:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for start in range(0, len(body), 65536):
            part = body[start : start + 65536]
            more = start + 65536 < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})


async def _stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Parts go past all layers where they can, and say which way they went.

    /chunks/jam goes on until they cannot, /chunks/gone until the client has left.
    """
    chunks, path = scope["extensions"]["parley.chunks"], scope["path"]
    early = chunks.is_open
    length = [(b"content-length", b"15")] if path == "/chunks/counted" else []
    await send({"type": "http.response.start", "status": 200, "headers": length})
    if path == "/chunks/gone":
        chunks.write(b"here")
        while (await receive())["type"] != "http.disconnect":
            pass
    if path == "/chunks/over":
        chunks.write(b"here")
        while not chunks._protocol._is_over:  # noqa: ASYNC110  (it tells nobody)
            await asyncio.sleep(0)
        was_open.append((early, chunks.is_open, False))
        return
    while path == "/chunks/jam" and chunks.is_open:
        chunks.write(b"x" * 10_000)
        waiting.append(chunks._protocol.transport.get_write_buffer_size())
    now = chunks.is_open
    for word in (b"one", b"two"):
        if chunks.is_open:
            chunks.write(b"<%b>" % word)
        else:
            await send({"type": "http.response.body", "body": b" %b " % word, "more_body": True})
    await send({"type": "http.response.body", "body": b"three", "more_body": False})
    was_open.append((early, now, chunks.is_open))


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/over":
        await _hand_over(scope, receive, send)
        return
    write = scope["extensions"]["parley.transport"].write_frame
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept", "subprotocol": "chat.v1"})
            if scope["path"] == "/slow":
                await asyncio.sleep(2 * websocket_protocol.MESSAGE_SECONDS)
            elif scope["path"].startswith("/bye"):
                code = int(scope["path"].removeprefix("/bye"))
                await send({"type": "websocket.close", "code": code})
            elif scope["path"] == "/busy":  # receives in the turn in which the deadline falls due
                await asyncio.sleep(websocket_protocol.MESSAGE_SECONDS / 2)
                # It is the loop that must be held up: deadlines fall due, and nothing is read.
                time.sleep(websocket_protocol.MESSAGE_SECONDS)  # noqa: ASYNC251
                await asyncio.sleep(0)
        elif message["text"].startswith('{"type": "direct"'):
            assert write(message["text"].encode())
        elif message["text"] == "several":
            wire = scope["extensions"]["parley.transport"]
            assert wire.can_write
            wire.write_frames([b'{"type":"several","text":"%s"}' % (b"x" * n) for n in (1, 70_000)])
        elif message["text"] == "jam":
            count = 0
            while write(b'{"type":"jam","text":"%s"}' % (b"x" * 10_000)):
                count += 1
            await send({"type": "websocket.send", "text": f'{{"type":"echo","length":{count}}}'})
        else:
            echo = {"type": "echo", "length": len(message["text"])}
            await send({"type": "websocket.send", "text": json.dumps(echo)})
    late_writes.append(write(b"too late"))


async def _hand_over(scope: Scope, receive: Receive, send: Send) -> None:
    """Return after the handshake, and echo nevertheless; what only wakes it up is said, too."""
    wire: WebSocketProtocol = scope["extensions"]["parley.transport"]

    async def go_on() -> None:
        while (message := await wire.receive())["type"] != "websocket.disconnect":
            length = len(message.get("text", ""))
            echo = {"type": "echo", "length": length, "kind": message["type"]}
            wire.write_frame(json.dumps(echo).encode())

    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "subprotocol": "chat.v1"})
    handed_over.append(wire)
    wire.go_on_with(go_on)
