"""`Http`: one HTTP request to a worker of this process, without a socket."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.types import Message

from server.worker.app import Worker
from tests.end_to_end.frames.client_model import Frame
from tests.helpers.patience import PATIENCE
from tests.server.helpers.in_process import TOKEN


class Http:
    """One HTTP request to a worker of this process; `frames` are those of its answer so far.

    `status` and `headers` are there once it is `answered`. Parts of a stream come past ASGI, as by
    our protocol class, unless it `is_jammed`.
    """

    def __init__(
        self,
        worker: Worker,
        method: str,
        path: str,
        query: str = "",
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.frames: list[Frame] = []
        self.is_done = False  # `data: [DONE]` has come
        self.is_jammed = False
        self.num_straight = 0  # parts that came past ASGI
        self._has_begun = False
        self._requests: asyncio.Queue[Message] = asyncio.Queue()
        sent = body if isinstance(body, bytes) else orjson.dumps(body or {})
        self._requests.put_nowait({"type": "http.request", "body": sent, "more_body": False})
        self._arrived = asyncio.Event()
        self._rest = b""
        sent_headers = {
            "host": "localhost",
            "authorization": f"Bearer {TOKEN}",
            "content-type": "application/json",
            **(headers or {}),
        }
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent_headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "scheme": "http",
            "extensions": {"parley.chunks": self},
        }
        self.answered = asyncio.ensure_future(worker.app(scope, self._requests.get, self._take))

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            self._has_begun = True
        self._add(message.get("body", b""))

    @property
    def is_open(self) -> bool:
        """As our protocol class says it."""
        return self._has_begun and not self.is_jammed

    def write(self, part: bytes) -> None:
        assert self.is_open and part
        self.num_straight += 1
        self._add(part)

    def _add(self, part: bytes) -> None:
        *events, self._rest = (self._rest + part).split(b"\n\n")
        for event in events:
            data = [line for line in event.split(b"\n") if line.startswith(b"data: ")]
            if data == [b"data: [DONE]"]:
                self.is_done = True
                continue
            self.frames += [orjson.loads(line.removeprefix(b"data: ")) for line in data]
        self._arrived.set()

    def leave(self) -> None:
        """The client closes its connection."""
        self._requests.put_nowait({"type": "http.disconnect"})

    async def num_frames(self, count: int) -> None:
        """Return when there are so many."""
        await self._until(lambda: len(self.frames) >= count)

    async def first(self, kind: str) -> Frame:
        """The first frame of that type, when it has come."""
        await self._until(lambda: any(f["type"] == kind for f in self.frames))
        return next(frame for frame in self.frames if frame["type"] == kind)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self._arrived.clear()
                await self._arrived.wait()

    async def body(self) -> Any:
        """A whole answer that is no stream."""
        await asyncio.wait_for(self.answered, PATIENCE)
        return orjson.loads(self._rest)
