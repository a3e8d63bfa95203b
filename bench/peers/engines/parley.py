"""Parley as users run it, and three doors to it: websocket, server-sent events, the engine alone.

The engine alone is the core of the same running server, joined by this program directly: the same
weights and the same memory, without sessions, Redis and a worker in between.
"""

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil
import uvloop

from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import ANSWER_SECONDS, BenchSocket, random_key
from bench.peers.engines.llama_cpp import FOUR_BITS, gguf_file
from bench.peers.engines.peer import MAX_CHATS, MAX_MODEL_LEN, Peer, Running
from bench.peers.load.doors import Answer, Conversation, LoadError, Until, events
from bench.peers.load.prompts import Prompt
from bench.peers.machine.environments import Unavailable
from bench.peers.record.figures import cache_of, weights_of
from engine import AsyncLLM, CoreState, RequestOutputKind, SamplingParams
from engine.client.requests.inputs import TokensPrompt
from tests.end_to_end.site.harness import Server

FLUSH_SECONDS = 0.001  # for a frame to leave before its connection is given up
DELTA, DONE = "response.output_text.delta", "response.done"


class Parley(Peer):
    """Of a precision of llama.cpp it serves the very file that llama.cpp serves."""

    name = "parley"
    precisions: ClassVar[dict[str, float]] = {
        "bf16": 2.0,
        "bf16-kv8": 2.0,  # keys and values in 8 bits
        "fp32": 4.0,
        "int8": 1.0 + 4 / 128,
        "int8-kv8": 1.0 + 4 / 128,
        "int4": 4.375 / 8,
        **FOUR_BITS,
    }
    keeps_log = False  # it is in the server's folder; a failed start is reported with its end
    more_settings: ClassVar[dict[str, str]] = {}  # of `parley serve`

    @property
    def value_bytes(self) -> float:
        if cache_of(self.precision) == "kv8":
            return 1.0 + 4 / self.site.checkpoint.head_dim  # a float32 for each token and head
        return 4.0 if self.precision == "fp32" else 2.0

    def prepare(self) -> str:
        if self.precision in FOUR_BITS:
            gguf_file(self.site, self.precision)
        return "of this checkout"

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        weights = weights_of(self.precision)
        dtypes = {"bf16": "bfloat16", "fp32": "float32", "int8": "bfloat16", "int4": "bfloat16"}
        settings = {
            "OMP_NUM_THREADS": str(self.site.threads),
            "PARLEY_DTYPE": dtypes.get(weights, "auto"),
            "PARLEY_KV_CACHE_DTYPE": "int8" if cache_of(self.precision) == "kv8" else "auto",
            "PARLEY_MAX_MODEL_LEN": str(min(MAX_MODEL_LEN, self._positions())),
            "PARLEY_KV_CACHE_MEMORY_BYTES": str(self.site.kv_cache_bytes),
            **self.more_settings,
        }
        if weights in ("int8", "int4"):
            settings["PARLEY_QUANTIZE"] = weights
        if level := os.environ.get("PARLEY_CPU_LEVEL"):
            settings["PARLEY_CPU_LEVEL"] = level
        with contextlib.ExitStack() as stack:
            try:
                folder = self.site.checkpoint.folder
                if weights in FOUR_BITS:
                    folder = gguf_file(self.site, weights)
                server = stack.enter_context(running_server(folder, Server, **settings))
            except AssertionError as error:  # what its log says at the end
                raise Unavailable(str(error).strip().splitlines()[-1]) from None
            assert server.process is not None
            # Everybody hears of what their own tabs do, so each chat is somebody else's.
            users = Users(uvloop.run(user_tokens(server, MAX_CHATS)))
            yield Running(
                server.process.pid,
                {
                    "websocket": SessionDoor(server, users, WebsocketConversation),
                    "events": SessionDoor(server, users, EventsConversation),
                },
                EngineDoor(core_address(server), str(folder)),
            )

    def _positions(self) -> int:
        config = json.loads((self.site.checkpoint.folder / "config.json").read_text())
        return int(config.get("max_position_embeddings", MAX_MODEL_LEN))


class Users:
    """Tokens of users, one after the other."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return self._tokens[self._count % len(self._tokens)]


def core_address(server: Server) -> str:
    """Where the core of a running server listens."""
    (core,) = server.children("engine.core")
    sockets = psutil.Process(core.pid).net_connections("unix")
    path = next(one.laddr for one in sockets if str(one.laddr).endswith("core.sock"))
    return f"ipc://{path}"


def settings_for(num_tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_output_tokens": num_tokens}


def enter_usage(answer: Answer, frame: dict[str, Any]) -> None:
    """What `response.done` says. Raises `LoadError` for an answer that failed."""
    response = frame["response"]
    if response["status"] == "failed":
        raise LoadError(f"failed: {response.get('status_details')}")
    usage = response["usage"]
    answer.num_tokens = usage["output_tokens"]
    answer.prompt_tokens = usage["input_tokens"]
    answer.cached_tokens = usage.get("cached_tokens") or 0


# ---- sessions, and the two ways to talk in one --------------------------------------------------


class SessionDoor:
    """Each answer in a new session."""

    def __init__(
        self, server: Server, users: Users, converse: Callable[[Server, str], Conversation]
    ) -> None:
        self._server = server
        self._users = users
        self._converse = converse

    async def answer(self, prompt: Prompt, num_tokens: int, until: Until | None = None) -> Answer:
        return await self.conversation().say(prompt.message, num_tokens, until)

    def conversation(self) -> Conversation:
        return self._converse(self._server, self._users.next())


class WebsocketConversation:
    """Each question on a connection that is open before the clock runs."""

    def __init__(self, server: Server, token: str) -> None:
        self._server = server
        self._token = token
        self._session = ""

    async def say(self, message: str, num_tokens: int, until: Until | None = None) -> Answer:
        socket = await BenchSocket.open(self._server, self._token)
        try:
            if not self._session:
                self._session = await socket.new_session()
            else:
                socket.send("session.subscribe", session_id=self._session)
                await socket.next("session.subscribed")
            return await self._ask(socket, message, num_tokens, until)
        finally:
            socket.close()

    async def _ask(
        self, socket: BenchSocket, message: str, num_tokens: int, until: Until | None
    ) -> Answer:
        answer = Answer(time.monotonic())
        response = await socket.ask(self._session, message, **settings_for(num_tokens))
        while True:
            frame = await socket.next(DELTA, DONE)
            if f'"type":"{DONE}"'.encode() in frame.payload:
                break
            answer.arrivals.append(frame.at)
            if until is not None and until(answer):
                socket.send("stop", response_id=response)
                answer.ended = time.monotonic()
                answer.num_tokens = len(answer.arrivals)
                await asyncio.sleep(FLUSH_SECONDS)
                return answer
        answer.ended = frame.at
        enter_usage(answer, frame.body)
        return answer


class EventsConversation:
    """Server-sent events: `POST …/responses`, followed as it is written."""

    def __init__(self, server: Server, token: str) -> None:
        self._port = urlsplit(server.url).port or 80
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session = ""

    async def say(self, message: str, num_tokens: int, until: Until | None = None) -> Answer:
        if not self._session:
            self._session = await self._new_session()
        answer = Answer(time.monotonic())
        path = f"/v1/sessions/{self._session}/responses"
        body = {"input": message, "settings": settings_for(num_tokens)}
        async with aclosing(self._post(path, body)) as stream:
            async for at, data in stream:
                frame = json.loads(data)
                if frame["type"] == DONE:
                    enter_usage(answer, frame)
                elif frame["type"] == DELTA:
                    answer.arrivals.append(at)
                    if until is not None and until(answer):
                        await self._cancel(frame["response_id"])
                        answer.num_tokens = len(answer.arrivals)
                        break
        answer.ended = time.monotonic()
        return answer

    async def _new_session(self) -> str:
        made = [json.loads(data) async for _, data in self._post("/v1/sessions", {})]
        return str(made[0]["id"])

    async def _cancel(self, response_id: str) -> None:
        async for _ in self._post(f"/v1/responses/{response_id}/cancel", {}):
            pass

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {**self._headers, "Idempotency-Key": random_key()}
        return events(self._port, path, body, headers)


# ---- the engine alone ---------------------------------------------------------------------------


class EngineDoor:
    """The server's own core; answers are asked for while it is `joined`."""

    def __init__(self, address: str, folder: str) -> None:
        self._address = address
        self._folder = folder
        self._engine: AsyncLLM | None = None

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """One client of the core for all answers within. It belongs to the running event loop."""
        is_ready = asyncio.Event()

        def hear(state: CoreState, reason: str) -> None:
            if state is CoreState.READY:
                is_ready.set()

        self._engine = AsyncLLM.connect(self._address, model=self._folder, on_core_state=hear)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await is_ready.wait()
            yield
        finally:
            self._engine.shutdown()
            self._engine = None

    async def answer(self, prompt: Prompt, num_tokens: int, until: Until | None = None) -> Answer:
        assert self._engine is not None, "it is not joined"
        params = SamplingParams(
            temperature=0,
            max_tokens=num_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        answer = Answer(time.monotonic(), prompt_tokens=len(prompt.token_ids))
        request = TokensPrompt(prompt_token_ids=prompt.token_ids)
        stream = self._engine.generate(request, params, uuid.uuid4().hex)
        async with aclosing(stream) as outputs:
            async for output in outputs:
                answer.arrivals.append(time.monotonic())
                answer.num_tokens += len(output.outputs[0].token_ids)
                if until is not None and until(answer):
                    break
        answer.ended = time.monotonic()
        return answer
