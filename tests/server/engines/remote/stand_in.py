"""`StandIn`: an engine at an address without a model, which misbehaves as a test plants it.

It speaks a kind's wire format as the real server does (`recorded/`). Its next token depends on each
token before it, so an answer that goes on elsewhere is the same only if no id was lost or changed.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, ClassVar

import orjson

FIRST_LETTER, NUM_LETTERS = 36, 50  # ids of the built-in model that are one letter each
END_ID = 2  # of the same
VOCABULARY = 2560


def next_id(ids: Sequence[int]) -> int:
    """What the model says after these."""
    return (
        FIRST_LETTER + sum((place % 7 + 1) * each for place, each in enumerate(ids)) % NUM_LETTERS
    )


def answer_ids(ids: Sequence[int], number: int) -> list[int]:
    """The next tokens of an answer that nothing has disturbed."""
    so_far = list(ids)
    for _ in range(number):
        so_far.append(next_id(so_far))
    return so_far[len(ids) :]


class StandIn:
    """Base of the kinds. `faults` are those of the next answers, one each; without any it is well.

    With `pace` set each token waits for a permit, which `let` gives.
    """

    answer_path: ClassVar[str]

    def __init__(self) -> None:
        self.faults: deque[str] = deque()
        self.asked: list[dict[str, Any]] = []  # for answers, in their order
        self.paths: list[str] = []  # of all that was asked
        self.keys: set[str] = set()  # by which it was asked
        self.pace: asyncio.Semaphore | None = None
        self.script: list[int] = []  # what it says instead, if anything
        self.num_open = 0  # replies that are being written
        self.port = 0
        self.is_mute = False  # it takes connections, and says nothing on any route
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._answering: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, **options: Any) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, **options)
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """As by SIGKILL: all connections break, and no further one is taken."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            for task in self._serving:
                task.cancel()
            if self._serving:
                await asyncio.wait(self._serving)
            await server.wait_closed()

    def let(self, number: int) -> None:
        """So many more tokens may come, of whichever answers."""
        assert self.pace is not None
        for _ in range(number):
            self.pace.release()

    # ---- what a kind says -----------------------------------------------------------------------

    def routes(self) -> dict[str, Callable[[Any], Any]]:
        """Path → what the JSON of its reply is, made of that of the request."""
        raise NotImplementedError

    def prompt(self, body: dict[str, Any]) -> list[int]:
        raise NotImplementedError

    def limit(self, body: dict[str, Any]) -> int:
        raise NotImplementedError

    def token_event(self, body: dict[str, Any], ids: list[int], *, fault: str) -> dict[str, Any]:
        """Says the last of these, which are of this answer."""
        raise NotImplementedError

    def last_event(self, body: dict[str, Any], ids: list[int], reason: str) -> dict[str, Any]:
        raise NotImplementedError

    # ---- HTTP -----------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._writers.add(writer)
        self._serving.add(task)
        try:
            ends = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
            with contextlib.suppress(*ends):  # asyncio makes a noise of one that was cancelled
                await self._exchange(reader, writer)
        finally:
            self._serving.discard(task)
            self._writers.discard(writer)
            writer.close()

    def cut_answers(self) -> None:
        """Break the connections of all replies that are being written, and no others."""
        for writer in list(self._answering):
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        path = lines[0].split(" ")[1]
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:])}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        body = orjson.loads(content) if content else {}
        self.paths.append(path)
        if "authorization" in headers:
            self.keys.add(headers["authorization"])
        if self.is_mute:
            await reader.read()
            return
        if path == self.answer_path:
            self.asked.append(body)
            fault = self.faults.popleft() if self.faults else ""
            self.num_open += 1
            self._answering.add(writer)
            try:
                await self._answer(body, fault, reader, writer)
            finally:
                self.num_open -= 1
                self._answering.discard(writer)
            return
        route = self.routes().get(path)
        if route is None:
            whole_reply(writer, 404, b'{"error":{"message":"no such route"}}')
        elif isinstance(reply := route(body), int):
            whole_reply(writer, reply, b'{"error":{"message":"planted"}}')
        else:
            whole_reply(writer, 200, orjson.dumps(reply))
        await writer.drain()

    async def _answer(
        self,
        body: dict[str, Any],
        fault: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if fault == "silent":
            await reader.read()
            return
        if fault.isdigit():
            whole_reply(writer, int(fault), b'{"error":{"message":"planted","type":"planted"}}')
            return
        if fault == "redirect":
            head = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\n"
            writer.write(head + b"Content-Length: 0\r\n\r\n")
            return
        if not body.get("stream"):
            ids = self._ids(body)
            whole_reply(writer, 200, orjson.dumps(self.last_event(body, ids, "length")))
            return
        kind = b"text/html" if fault == "text/html" else b"text/event-stream"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"; charset=utf-8\r\n"
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        await self._stream(body, fault, writer)

    async def _stream(self, body: dict[str, Any], fault: str, writer: asyncio.StreamWriter) -> None:
        number = 0
        async with contextlib.aclosing(self._events(body, fault)) as events:
            async for event in events:
                number += 1
                if writer.is_closing():
                    break
                if number == 3 and fault == "half a frame":
                    chunk(writer, event[: len(event) // 2])
                if number == 3 and fault in ("half a frame", "cut"):
                    writer.transport.close()
                    break
                chunk(writer, event)
                await writer.drain()
            else:
                writer.write(b"0\r\n\r\n")

    async def _events(self, body: dict[str, Any], fault: str) -> AsyncGenerator[bytes, None]:
        if fault == "endless event":
            while True:
                yield b"data: " + b"x" * 65536
                await asyncio.sleep(0)
        ids: list[int] = []
        planned = self._ids(body)
        if fault == "more than was asked for":
            planned = answer_ids(self.prompt(body), len(planned) + 30)
        reason = "stop" if planned[-1:] == [END_ID] else "length"
        for place, token_id in enumerate(planned):
            if self.pace is not None:
                await self.pace.acquire()
            ids.append(VOCABULARY + 7 if fault == "wrong ids" and place == 2 else token_id)
            while (place, fault) in ((0, "comments alone"), (2, "comments in the middle")):
                yield b": we are still here\n\n"
                await asyncio.sleep(0.01)
            if place == 2 and fault == "no JSON":
                yield b"data: {\n\n"
            if place == 2 and fault == "an error in the stream":
                yield b'data: {"error":{"message":"planted"}}\n\n'
                return
            if place == 2 and fault == "a clean end":
                return
            yield event_of(self.token_event(body, ids, fault=fault))
            await asyncio.sleep(0)
        for each in self.ends(body, ids, reason):
            yield each

    def ends(self, body: dict[str, Any], ids: list[int], reason: str) -> Iterator[bytes]:
        yield event_of(self.last_event(body, ids, reason))

    def _ids(self, body: dict[str, Any]) -> list[int]:
        limit = self.limit(body)
        return self.script[:limit] if self.script else answer_ids(self.prompt(body), limit)


class LlamaCppStandIn(StandIn):
    """As `llama-server` speaks, with 8 slots of 1,024 tokens."""

    answer_path = "/completion"
    hidden_ids: frozenset[int] = frozenset()  # of which a stream says nothing but their count

    def routes(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "/props": lambda _: {
                "default_generation_settings": {"params": {}, "n_ctx": 1024},
                "total_slots": 8,
                "model_path": "m.gguf",
            },
            "/slots": lambda _: [
                {"id": number, "n_ctx": 1024, "is_processing": number < self.num_open}
                for number in range(8)
            ],
            "/tokenize": lambda body: {"tokens": self.tokenize(body["content"])},
        }

    def tokenize(self, text: str) -> list[int]:
        raise NotImplementedError  # a test gives it a tokenizer

    def prompt(self, body: dict[str, Any]) -> list[int]:
        return list(body["prompt"])

    def limit(self, body: dict[str, Any]) -> int:
        return int(body["n_predict"])

    def token_event(self, body: dict[str, Any], ids: list[int], *, fault: str) -> dict[str, Any]:
        is_lie = fault == "lies about the prompt"
        return {
            "index": 0,
            "content": "x",
            "tokens": ids[-1:],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(ids) - (3 if fault == "lies about its tokens" else 0),
            "tokens_evaluated": len(self.prompt(body)) + is_lie,
        }

    def last_event(self, body: dict[str, Any], ids: list[int], reason: str) -> dict[str, Any]:
        return {
            "index": 0,
            "content": "",
            "tokens": [] if body["stream"] else ids,
            "id_slot": 0,
            "stop": True,
            "tokens_predicted": len(ids),
            "tokens_evaluated": len(self.prompt(body)),
            "stop_type": "eos" if reason == "stop" else "limit",
            "stopping_word": "",
        }


class SGLangStandIn(StandIn):
    """As SGLang speaks: all ids so far in each event, or with `is_incremental` the new ones."""

    answer_path = "/generate"

    def __init__(self, *, is_incremental: bool = False) -> None:
        super().__init__()
        self.is_incremental = is_incremental
        self.refuses_aborts = False
        self.ignores_aborts = False  # it says that it knows, and goes on
        self.aborted: set[str] = set()

    def routes(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "/server_info": lambda _: {
                "context_length": 1024,
                "max_total_num_tokens": 4096,
                "internal_states": [{"effective_max_running_requests_per_dp": 16}],
            },
            "/get_load": lambda _: [{"dp_rank": 0, "num_reqs": self.num_open}],
            "/health": lambda _: "",
            "/abort_request": self.abort,
        }

    def abort(self, body: dict[str, Any]) -> Any:
        """It takes a name for the beginning of names."""
        if self.refuses_aborts:
            return 500
        if not self.ignores_aborts:
            self.aborted.add(body["rid"])
        if self.pace is not None:
            self.let(self.num_open)  # they come round, and see it
        return ""

    def prompt(self, body: dict[str, Any]) -> list[int]:
        return list(body["input_ids"])

    def limit(self, body: dict[str, Any]) -> int:
        return int(body["sampling_params"]["max_new_tokens"])

    async def _events(self, body: dict[str, Any], fault: str) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(super()._events(body, fault)) as events:
            async for event in events:
                if any(body["rid"].startswith(name) for name in self.aborted):
                    reason = {"type": "abort", "message": "Abort in waiting", "status_code": 499}
                    yield event_of(self._about(body, [], reason))
                    return
                yield event
        yield b"data: [DONE]\n\n"

    def token_event(self, body: dict[str, Any], ids: list[int], *, fault: str) -> dict[str, Any]:
        event = self._about(body, ids, None)
        if fault == "lies about the prompt":
            event["meta_info"]["prompt_tokens"] += 1
        if fault == "lies about its tokens":
            event["meta_info"]["completion_tokens"] += 3
        return event

    def last_event(self, body: dict[str, Any], ids: list[int], reason: str) -> dict[str, Any]:
        more = {"matched": END_ID} if reason == "stop" else {"length": len(ids)}
        return self._about(body, ids, {"type": reason, **more})

    def _about(self, body: dict[str, Any], ids: list[int], reason: Any) -> dict[str, Any]:
        about = {
            "id": body["rid"],
            "finish_reason": reason,
            "prompt_tokens": len(self.prompt(body)),
            "completion_tokens": len(ids),
            "cached_tokens": 1,
        }
        shown = ids if not self.is_incremental else ids[-1:] if reason is None else []
        return {"text": "", "output_ids": list(shown), "meta_info": about}


def whole_reply(writer: asyncio.StreamWriter, status: int, content: bytes) -> None:
    head = f"HTTP/1.1 {status} Planted\r\nContent-Type: application/json; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def event_of(content: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(content), content))
