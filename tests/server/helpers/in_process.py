"""Whole workers in this process: real Redis, real sockets' code without sockets, a scripted engine.

What a real engine and network decide by chance, dice decide here: before each step everybody gives
way a random number of times, so that thousands of orders of the same few steps can be tried in
seconds. `ScriptedEngine` counts like the oracle model of tests/helpers/tiny_model.py.
"""

import asyncio
import contextlib
import json
import random
import re
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import orjson
from starlette.types import ASGIApp, Message

from engine import CompletionOutput, RequestOutput
from engine.outputs import RequestProgress
from engine.tracing.tracing import Tracing
from server.config.intervals import SHORTENED, Intervals
from server.config.limits import Limits
from server.config.worker import WorkerConfig, WorkerSettings
from server.engines.client import (
    EngineTokenizer,
    Marks,
    SamplingParams,
    ServedModel,
    TokensPrompt,
)
from server.engines.models import Models
from server.worker.app import Worker
from sessions.connection.link import Call
from sessions.store.store import SessionStore
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.history import History
from tests.end_to_end.oracle.stored_state import Stored, read_store
from tests.end_to_end.site.client import ChatClient
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.engines import IdleEngine

TOKEN = "in-process-token-of-the-tests"
MODEL = ServedModel("oracle", "fingerprint")
PHASES = ("queued", "prefill", "first", "mid", "last", "ended")
# No stall of the machine ends a lease: whose answer is taken over waits for no phase any more.
PATIENT = msgspec.structs.replace(SHORTENED, lease=60.0, silence=48.0, heartbeat_life=60.0)


class Dice:
    """Random choices from a seed that a failing test prints."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)

    async def give_way(self) -> None:
        """Let others run, for a random while."""
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 3, 5, 8, 20))):
            await asyncio.sleep(0)
        if self.random.random() < 0.1:
            await asyncio.sleep(self.random.random() * 0.003)


class Request:
    """One request at the scripted engine. Phases are reached in order and may be held."""

    def __init__(self) -> None:
        self.reached = {phase: asyncio.Event() for phase in PHASES}
        self.is_held: set[str] = set()
        self.held_at: str | None = None  # the phase that it really waits in, at this moment
        self.released = asyncio.Event()
        self.aborted = asyncio.Event()

    async def at(self, phase: str, dice: Dice) -> None:
        self.reached[phase].set()
        if phase in self.is_held:
            waits = [asyncio.ensure_future(e.wait()) for e in (self.released, self.aborted)]
            self.held_at = phase
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self.held_at = None
            for wait in waits:
                wait.cancel()
        await dice.give_way()


class ScriptedEngine(IdleEngine):
    """An engine and its tokenizer. All workers share one, as they share a core."""

    chat_stop = ()
    takes_tools = True

    def __init__(self, dice: Dice) -> None:
        super().__init__(max_model_len=32_768)
        self._dice = dice
        self.requests: defaultdict[str, Request] = defaultdict(Request)
        self.num_requests = 0
        self.sessions: list[str | None] = []
        self.was_asked = asyncio.Event()
        self.num_running = 0

    def get_tokenizer(self) -> EngineTokenizer:
        return self

    async def encode_async(self, text: str, *, owner: str = "") -> list[int]:
        return [int(number) for number in re.findall(r"t(\d{5}) ?", text)] or [0]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(oracle_word, token_ids))

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        return await self.encode_async(messages[-1]["content"] + answer)

    def resumed_text(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        resume_token_ids: Sequence[int],
        marks: Marks | None = None,
    ) -> str:
        return "".join(map(oracle_word, resume_token_ids))

    async def metrics(self) -> dict[str, Any]:
        return defaultdict(float)

    async def abort(self, request_id: str) -> None:
        await self._dice.give_way()
        self.requests[request_id].aborted.set()

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        on_progress: Callable[[RequestProgress], None] | None = None,
        resume_token_ids: Sequence[int] = (),
        session_id: str | None = None,
        **_: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        self.sessions.append(session_id)
        request, dice = self.requests[request_id], self._dice
        tell_progress = on_progress or (lambda _: None)
        self.num_requests += 1
        self.was_asked.set()
        self.num_running += 1
        token = [*prompt["prompt_token_ids"], *resume_token_ids][-1]
        assert sampling_params.max_tokens is not None
        num_left = sampling_params.max_tokens - len(resume_token_ids)
        try:
            await request.at("queued", dice)
            tell_progress(RequestProgress(0, 1, 0, 0, scheduled=False))
            await request.at("prefill", dice)
            if num_left <= 0:
                yield _output(request_id, "", [], "length")
                return
            tell_progress(RequestProgress(None, 1, 0, 1, scheduled=True))
            for number in range(num_left):
                is_last = number == num_left - 1
                phase = "first" if number == 0 else "last" if is_last else "mid"
                await request.at(phase, dice)
                # A core that was told to stop may have decoded another token by then.
                if request.aborted.is_set() and dice.random.random() < 0.7:
                    yield _output(request_id, "", [], "abort")
                    return
                token += 1
                yield _output(
                    request_id, oracle_word(token), [token], "length" if is_last else None
                )
        finally:
            self.num_running -= 1
            request.reached["ended"].set()


def _output(
    response_id: str, text: str, token_ids: list[int], finish_reason: str | None
) -> RequestOutput:
    answer = CompletionOutput(
        index=0, text=text, token_ids=token_ids, finish_reason=cast("Any", finish_reason)
    )
    return RequestOutput(response_id, None, None, None, [answer], finish_reason is not None)


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
