"""What real engines have said on the wire, byte for byte: `vllm.json`, `llamacpp.json`.

`record.py` has written them. Each exchange is one request and the whole reply to it, heads and
frames included.
"""

import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and the reply to it."""

    request: bytes
    reply: bytes

    @property
    def path(self) -> str:
        return self.request.split(b" ", 2)[1].decode()

    @property
    def asked(self) -> bytes:
        """The body of the request."""
        return self.request.partition(b"\r\n\r\n")[2]

    @property
    def status(self) -> int:
        return int(self.reply.split(b" ", 2)[1])

    @property
    def content_type(self) -> str:
        return _header(self.reply, b"content-type")

    @property
    def body(self) -> bytes:
        """Of the reply, without the frames that it came in."""
        body = self.reply.partition(b"\r\n\r\n")[2]
        return _unframed(body) if _header(self.reply, b"transfer-encoding") == "chunked" else body

    @property
    def events(self) -> list[bytes]:
        """The data of each server-sent event."""
        blocks = self.body.split(b"\n\n")
        return [block.removeprefix(b"data: ") for block in blocks if block.startswith(b"data: ")]


def recorded(engine: str) -> dict[str, Exchange]:
    """All that was recorded of an engine, by name."""
    entries = json.loads((HERE / f"{engine}.json").read_text())
    return {
        name: Exchange(entry["request"].encode(), "".join(entry["reply"]).encode())
        for name, entry in entries.items()
    }


def _header(message: bytes, name: bytes) -> str:
    for line in message.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip().decode()
    return ""


def _unframed(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)
