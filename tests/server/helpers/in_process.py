"""Whole workers in this process: real Redis, real sockets' code without sockets, a scripted engine.

What a real engine and network decide by chance, `Dice` decide here, so that thousands of orders of
the same few steps can be tried in seconds.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from starlette.types import ASGIApp, Message

from engine.tracing.tracing import Tracing
from server.config.intervals import SHORTENED, Intervals
from server.config.limits import Limits
from server.config.worker import WorkerConfig, WorkerSettings
from server.engines.client import ServedModel
from server.engines.models import Models
from server.worker.app import Worker
from sessions.connection.link import Call
from sessions.store.store import SessionStore
from tests.end_to_end.oracle.history import History
from tests.end_to_end.oracle.stored_state import Stored, read_store
from tests.end_to_end.site.client import ChatClient
from tests.helpers.patience import PATIENCE
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

TOKEN = "in-process-token-of-the-tests"
MODEL = ServedModel("oracle", "fingerprint")
# No stall of the machine ends a lease: whose answer is taken over waits for no phase any more.
PATIENT = msgspec.structs.replace(SHORTENED, lease=60.0, silence=48.0, heartbeat_life=60.0)


class HesitantStore(SessionStore):
    """A store whose every call gives way before and after it, as real ones do under load."""

    dice: Dice

    def hesitate(self, dice: Dice) -> None:
        script, call = self.client.script, self.client.call

        async def hesitant_script(*arguments: Any, **options: Any) -> Any:
            await dice.give_way()
            try:
                return await script(*arguments, **options)
            finally:
                await dice.give_way()

        async def hesitant_call(*arguments: Any, **options: Any) -> Any:
            await dice.give_way()
            return await call(*arguments, **options)

        self.client.script = hesitant_script  # type: ignore[method-assign]
        self.client.call = hesitant_call  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def running_workers(
    url: str,
    prefix: str,
    engine: ScriptedEngine,
    dice: Dice,
    count: int,
    intervals: Intervals = SHORTENED,
    tracing: Tracing | None = None,
    tools_path: Path | None = None,
) -> AsyncIterator[list[Worker]]:
    """So many workers on one Redis and one engine."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_worker(
                    url,
                    prefix,
                    engine,
                    dice,
                    f"w{number}",
                    intervals,
                    tracing,
                    tools_path=tools_path,
                )
            )
            for number in range(count)
        ]


@contextlib.asynccontextmanager
async def running_worker(
    url: str,
    prefix: str,
    engine: ScriptedEngine,
    dice: Dice,
    name: str,
    intervals: Intervals = SHORTENED,
    tracing: Tracing | None = None,
    models: Models | None = None,
    tools_path: Path | None = None,
) -> AsyncIterator[Worker]:
    """One of them, which may join the others later. `engine` serves the model that it has alone."""
    store = await HesitantStore.open(url, prefix=prefix, lease_seconds=intervals.lease)
    store.hesitate(dice)
    models = models or Models.of_one(MODEL, engine)
    worker = Worker(_config(name, url, intervals, tools_path), store, models, tracing)
    async with _lifespan(worker.app):
        yield worker


async def kill(worker: Worker) -> None:
    """From outside it is as if its process were killed: it sends Redis nothing more.

    Whose connections it has is the caller's to cut. Returns when Redis has carried out what was on
    its way there.
    """
    client = worker.store.client
    last = client._enqueue(("PING",))
    # A call that nobody answers. Of this one client, which is why mypy is silenced: it allows no
    # method to be replaced.
    client._enqueue = lambda command: Call(())  # type: ignore[method-assign]
    await last.future


def _config(replica: str, url: str, intervals: Intervals, tools_path: Path | None) -> WorkerConfig:
    settings = WorkerSettings(
        redis_secret=None,
        redis_timeout_seconds=1.0,
        limits=Limits(messages_per_s=0),
        intervals=intervals,
        max_num_queued_reqs=0,
        origins=(),
        proxies=(),
        is_loopback=False,
        hide_observers=False,
        log_level="info",
        effective_log_format="json",
        otlp_endpoint=None,
        otlp_headers={},
        lora_dir=None,
    )
    return WorkerConfig(
        settings=settings,
        replica=replica,
        listen_fd=-1,  # nobody listens, and its engine is in this process
        redis_url=url,
        models=(),
        token=TOKEN,
        admin_token="admin-" + TOKEN,
        server_started_at=0,
        tools_path=None if tools_path is None else str(tools_path),
    )


def patient_history(url: str, prefix: str) -> History:
    """Judges what patient workers under this prefix do; other tests may share their Redis."""

    def read() -> Stored:
        stored = read_store(url, prefix)
        stored.foreign_keys.clear()
        stored.is_served = False  # so patient, that nobody cleans an index up before the check
        return stored

    return History(read)


@contextlib.asynccontextmanager
async def _lifespan(app: ASGIApp) -> AsyncIterator[None]:
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    task = asyncio.create_task(_run(app, {"type": "lifespan"}, to_app.get, from_app.put))
    for event in ("startup", "shutdown"):
        if event == "shutdown":
            yield
        await to_app.put({"type": f"lifespan.{event}"})
        answer = await from_app.get()
        assert answer["type"] == f"lifespan.{event}.complete", answer
    await task


async def _run(app: ASGIApp, scope: Any, receive: Any, send: Any) -> None:
    await app(scope, receive, send)


class Wire:
    """Stands for our protocol class: what goes past ASGI comes with the rest of the answers."""

    transport: asyncio.Transport  # only a full socket is asked what waits in it
    closed_with: int | None = None
    on_room: Callable[[], None] | None = None

    def __init__(self, requests: asyncio.Queue[Message], answers: asyncio.Queue[Message]) -> None:
        self._requests = requests
        self._answers = answers
        self._go_on: Callable[[], Awaitable[None]] | None = None

    async def run(self, app: ASGIApp, scope: Any) -> None:
        """The application, and what it goes on with."""
        scope["extensions"]["parley.transport"] = self
        await app(scope, self.receive, self.send)
        if (go_on := self._go_on) is not None:
            self._go_on = None
            await go_on()

    def go_on_with(self, going_on: Callable[[], Awaitable[None]]) -> None:
        self._go_on = going_on

    async def receive(self) -> Message:
        return await self._requests.get()

    async def send(self, message: Message) -> None:
        self._answers.put_nowait(message)

    def wake(self) -> None:
        self._requests.put_nowait({"type": "parley.wake"})

    can_write = True

    def write_frames(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.write_frame(payload)

    def write_frame(self, payload: bytes) -> bool:
        self._answers.put_nowait({"type": "websocket.send", "text": payload.decode()})
        return True


class LocalClient(ChatClient):
    """A client of one of these workers. Use as an async context manager."""

    def __init__(self, worker: Worker, history: History, token: str = TOKEN) -> None:
        super().__init__(history)
        self._worker = worker
        self._token = token
        self._requests: asyncio.Queue[Message] = asyncio.Queue()
        self._accepted = asyncio.Event()
        self._is_lost = False
        self._answers: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        scope = {
            "type": "websocket",
            "path": "/v1/ws",
            "raw_path": b"/v1/ws",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"authorization", f"Bearer {self._token}".encode()),
            ],
            "subprotocols": ["chat.v1"],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "scheme": "ws",
            "extensions": {},
        }
        self.open_record()
        self._reading = asyncio.create_task(self._read())
        self._requests.put_nowait({"type": "websocket.connect"})
        wire = Wire(self._requests, self._answers)
        self._task = asyncio.create_task(wire.run(self._worker.app, scope))
        await self._accepted.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        if not self._is_lost:
            await self._task
            async with asyncio.timeout(PATIENCE):
                await self._answers.join()
        self._reading.cancel()
        if self.close_code is None:
            await self.end(0)
        if self.broken is not None:
            raise self.broken

    async def lose_worker(self) -> None:
        """Its worker was killed, and answers nothing any more."""
        self._is_lost = True
        self._accepted.set()
        self._task.cancel()
        if self.close_code is None:
            await self.end(0)

    def cut(self) -> None:
        """Lose the connection without a close frame."""
        self._requests.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def _read(self) -> None:
        while True:
            await self._take_answer(await self._answers.get())
            self._answers.task_done()

    async def _take_answer(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self._accepted.set()
        elif message["type"] == "websocket.close":
            await self.end(message["code"])
        elif self.close_code is None and self.broken is None:
            try:
                await self.take(json.loads(message["text"]))
            except AssertionError as broken:
                self.broken = broken

    async def _transmit(self, text: str) -> None:
        self._requests.put_nowait({"type": "websocket.receive", "text": text})
