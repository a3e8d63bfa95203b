"""A client of the websocket at `/v1/responses`, at a worker of this process."""

import asyncio
import json
from typing import Any, Self

from starlette.types import Message

from server.worker.app import Worker
from tests.helpers.patience import PATIENCE
from tests.server.helpers.in_process import TOKEN, Wire

Frame = dict[str, Any]


class SocketClient:
    """Use as an async context manager."""

    def __init__(
        self, worker: Worker, token: str | None = TOKEN, headers: dict[str, str] | None = None
    ) -> None:
        self._worker = worker
        self._headers = dict(headers or {})
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._requests: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self.wire = Wire(self._requests, self._answers)
        self.subprotocol: str | None = None
        self.denied: int | None = None  # the status of a handshake that is refused
        self.close: tuple[int, str] | None = None

    async def __aenter__(self) -> Self:
        scope = {
            "type": "websocket",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                *((name.encode(), value.encode()) for name, value in self._headers.items()),
            ],
            "subprotocols": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "scheme": "ws",
            "extensions": {"websocket.http.response": {}},
        }
        self._requests.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.create_task(self.wire.run(self._worker.app, scope))
        answer = await self._next()
        if answer["type"] == "websocket.accept":
            self.subprotocol = answer.get("subprotocol")
        else:
            self.denied = answer["status"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._requests.put_nowait({"type": "websocket.disconnect", "code": 1006})
        async with asyncio.timeout(PATIENCE):
            await self._task

    def send(self, frame: Frame | str) -> None:
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._requests.put_nowait({"type": "websocket.receive", "text": text})

    def create(self, **fields: Any) -> None:
        self.send({"type": "response.create", "model": "oracle", "max_output_tokens": 4, **fields})

    async def event(self) -> Frame:
        """The next one."""
        message = await self._next()
        assert message["type"] == "websocket.send", message
        event: Frame = json.loads(message["text"])
        return event

    async def until(self, kind: str, lane: str | None = None) -> list[Frame]:
        """What is streamed in that lane up to an event of that type."""
        found: list[Frame] = []
        while not found or found[-1]["type"] != kind:
            event = await self.event()
            if event.get("stream_id") == lane:
                found.append(event)
        return found

    async def closed(self) -> tuple[int, str]:
        """Code and reason, when the server has closed."""
        while (message := await self._next())["type"] != "websocket.close":
            pass
        return message["code"], message["reason"]

    async def _next(self) -> Message:
        async with asyncio.timeout(PATIENCE):
            return await self._answers.get()
