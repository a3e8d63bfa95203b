"""An engine in a process of its own that counts (`clients/counted_words.py`), and fails on command.

It speaks as `vllm serve` does, with its token route or without, or as `llama-server`, by the wire
formats of the stand-ins of `tests/server/engines/remote`. Lines on its standard input name a fault
for the requests to come, and for some of those that are open; an empty one ends it. What it does it
writes to a file, a line each, as it does it: so what happened is known after `kill -9` as well.

`python -m tests.end_to_end.storm.counting_engine KIND PORT NAME FILE TOKENIZER SEED`
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.end_to_end.clients.counted_words import LIE, next_id, question_of
from tests.server.engines.remote.stand_in import (
    LlamaCppStandIn,
    StandIn,
    chunk,
    event_of,
    whole_reply,
)
from tests.server.engines.remote.vllm_stand_in import PlainVLLMStandIn, VLLMStandIn

TOKEN_SECONDS = 1 / 60
SLOW_SECONDS = 0.3
MAX_TOKENS_BEFORE = 8  # of a request, until its fault is carried out
NO_TOKEN = 17_000 + 7  # of a model of 17,000
STANDS_STILL, NEVER_ANSWERS, MUTE = "stream stands still", "never answers", "says nothing anywhere"
COMMENTS, SLOW = "comments without end", "slow"
STATUSES = {"fails": 500, "too much to do": 503}
DIES = ("answer cut", "half an event", "reply ends too early", "error in the stream", *STATUSES)
HANGS = (STANDS_STILL, NEVER_ANSWERS, MUTE, COMMENTS, SLOW)
WRONG_PROMPT, WRONG_COUNT = "lies about the prompt", "lies about its tokens"
MORE, WRONG_TOKEN, NO_SUCH_TOKEN = "more than was asked for", "wrong token", "token of no model"
TWICE, LEFT_OUT, ON_AND_ON = "event twice", "event left out", "goes on after its end"
EARLY_LENGTH, EARLY_STOP = "limit too early", "stop too early"
NO_JSON, ENDLESS, REDIRECT, HTML = "no JSON", "endless event", "redirect", "another type"
IGNORES_ABORTS, REFUSES_ABORTS = "ignores aborts", "refuses aborts"
LIES = (
    *(WRONG_PROMPT, WRONG_COUNT, MORE, WRONG_TOKEN, NO_SUCH_TOKEN, TWICE, LEFT_OUT, ON_AND_ON),
    *(EARLY_LENGTH, EARLY_STOP, NO_JSON, ENDLESS, REDIRECT, HTML, IGNORES_ABORTS, REFUSES_ABORTS),
)
AT_FIRST = (NEVER_ANSWERS, WRONG_PROMPT, REDIRECT, HTML, *STATUSES)  # or not at all
ABORTS = (IGNORES_ABORTS, REFUSES_ABORTS)  # faults of a route that only one kind has
OF_ROUTES = (MUTE, *ABORTS)  # not of one answer


@dataclass
class Request:
    """One that is open. `place`: how many tokens it has when its fault is carried out."""

    number: int
    word: int
    fault: str = ""
    place: int = 0
    has_happened: bool = False
    num_tokens: int = 0
    last_at: float = 0.0  # a token was said


class CountingEngine(StandIn):
    """Mixed into a kind's stand-in."""

    def __init__(self, name: str, facts: Path, tokenizer: Tokenizer, seed: str) -> None:
        super().__init__()
        self.fault, self.share = "", 0.0
        self._name = name
        self._facts = os.open(facts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._tokenizer = tokenizer
        self._dice = random.Random(seed)
        self._calm = asyncio.Event()
        self._calm.set()
        self._requests: dict[int, Request] = {}
        self._num_requests = 0

    def note(self, what: str, request: Request | None = None, **more: Any) -> None:
        about = {} if request is None else {"request": request.number, "word": request.word}
        fact = {"at": time.monotonic(), "engine": self._name, "pid": os.getpid(), "what": what}
        os.write(self._facts, json.dumps(fact | about | more).encode() + b"\n")

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    # ---- its commands ---------------------------------------------------------------------------

    def obey(self, line: str) -> None:
        """`SHARE FAULT`, or nothing for none."""
        share, _, self.fault = line.strip().partition(" ")
        self.share = float(share or 0)
        self.is_mute = self.fault == MUTE
        if self.fault:
            self._calm.clear()
        else:
            self._calm.set()
        for request in self._requests.values():
            request.fault = ""
            if self.fault not in AT_FIRST:
                self._draw(request)

    def _draw(self, request: Request) -> None:
        if self.fault and self.fault not in OF_ROUTES and self._dice.random() < self.share:
            request.fault, request.has_happened = self.fault, False
            most = 1 if self.fault in AT_FIRST else MAX_TOKENS_BEFORE
            request.place = request.num_tokens + self._dice.randrange(most)

    def _happens(self, request: Request) -> None:
        if not request.has_happened:
            request.has_happened = True
            self.note("fault", request, name=request.fault)

    # ---- an answer ------------------------------------------------------------------------------

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_mute:
            self.note("fault", name=MUTE)
        await super()._exchange(reader, writer)

    async def _answer(
        self,
        body: dict[str, Any],
        fault: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        prompt = self.prompt(body)
        self._num_requests += 1
        question = prompt[: question_of(prompt)]
        request = Request(self._num_requests, question[-1])
        self._draw(request)
        self._requests[request.number] = request
        self.note("begin", request, question=question)
        leaving = asyncio.create_task(reader.read())
        why = "broken"
        try:
            why = await self._say(request, body, writer, leaving)
        finally:
            leaving.cancel()
            del self._requests[request.number]
            said = {"num_tokens": request.num_tokens, "last_at": request.last_at}
            self.note("end", request, why=why, **said)

    async def _say(
        self,
        request: Request,
        body: dict[str, Any],
        writer: asyncio.StreamWriter,
        leaving: "asyncio.Task[bytes]",
    ) -> str:
        """How it has ended. Raises ConnectionError."""
        prompt, limit = self.prompt(body), self.limit(body)
        if request.fault in STATUSES:
            self._happens(request)
            whole_reply(writer, STATUSES[request.fault], b'{"error":{"message":"planted"}}')
            return "status"
        if request.fault == REDIRECT:
            self._happens(request)
            head = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\n"
            writer.write(head + b"Content-Length: 0\r\n\r\n")
            return "status"
        if request.fault == NEVER_ANSWERS:
            self._happens(request)
            if not await self._stand_still(leaving):
                return "left"
            request.fault = ""
        if not body.get("stream"):
            ids = _counted(prompt[-1], limit)
            whole_reply(writer, 200, json.dumps(self.last_event(body, ids, "length")).encode())
            request.num_tokens, request.last_at = limit, time.monotonic()
            return "done"
        kind = b"text/html" if request.fault == HTML else b"text/event-stream"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"; charset=utf-8\r\n"
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        if request.fault == HTML:
            self._happens(request)
        return await self._say_tokens(request, body, writer, leaving)

    async def _say_tokens(
        self,
        request: Request,
        body: dict[str, Any],
        writer: asyncio.StreamWriter,
        leaving: "asyncio.Task[bytes]",
    ) -> str:
        limit, last_id = self.limit(body), self.prompt(body)[-1]
        ids: list[int] = []
        reason = "length"
        while len(ids) < limit:
            is_now = bool(request.fault) and len(ids) >= request.place
            await asyncio.sleep(SLOW_SECONDS if is_now and request.fault == SLOW else TOKEN_SECONDS)
            if leaving.done():
                return "left"
            if self.is_aborted(body):
                if self.fault == IGNORES_ABORTS:
                    self.note("fault", request, name=IGNORES_ABORTS)
                    self.forget_abort(body)
                else:
                    chunk(writer, self.abort_event(body))
                    writer.write(b"0\r\n\r\n")
                    return "aborted"
            fault = request.fault if is_now else ""
            if fault:
                self._happens(request)
                if fault not in (SLOW, WRONG_PROMPT, HTML):
                    request.fault = ""
                if fault == COMMENTS:
                    if not await self._comment(writer, leaving):
                        return "left"
                elif fault == STANDS_STILL and not await self._stand_still(leaving):
                    return "left"
                elif fault in DIES:
                    await self._break_off(fault, body, [*ids, next_id(last_id)], writer)
                    return fault
            last_id = next_id(last_id)
            ids.append(NO_TOKEN if fault == NO_SUCH_TOKEN else last_id)
            if fault == WRONG_TOKEN:
                ids[-1] += LIE
            if fault == ENDLESS:
                return await self._say_without_end(writer, leaving)
            if fault in (EARLY_LENGTH, EARLY_STOP):
                reason = "length" if fault == EARLY_LENGTH else "stop"
                event = self.end_of_tokens(body, ids, reason)
                limit = len(ids)
            else:
                event = event_of(self.token_event(body, ids, fault=fault))
            if fault != LEFT_OUT:
                chunk(writer, event)
            if fault == TWICE:
                chunk(writer, event)
            if fault == NO_JSON:
                chunk(writer, b"data: {\n\n")
            await writer.drain()
            if not request.num_tokens:
                self.note("first token", request)
            request.num_tokens, request.last_at = len(ids), time.monotonic()
            if fault in (MORE, ON_AND_ON):
                limit = await self._overdo(fault, body, ids, limit, writer)
        for event in self.last_events(body, ids, reason):
            chunk(writer, event)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return "done"

    async def _overdo(
        self,
        fault: str,
        body: dict[str, Any],
        ids: list[int],
        limit: int,
        writer: asyncio.StreamWriter,
    ) -> int:
        """More tokens than were asked for, or some after the last one."""
        if fault == MORE:
            while len(ids) < limit + 5:
                ids.append(next_id(ids[-1]))
                chunk(writer, event_of(self.token_event(body, ids, fault=MORE)))
        else:
            chunk(writer, self.ending(body, ids))
            ids.append(next_id(ids[-1]))
            chunk(writer, event_of(self.token_event(body, ids, fault="")))
        await writer.drain()
        return len(ids)

    async def _break_off(
        self, fault: str, body: dict[str, Any], ids: list[int], writer: asyncio.StreamWriter
    ) -> None:
        if fault == "error in the stream":
            chunk(writer, b'data: {"error":{"message":"planted","code":500}}\n\n')
        elif fault == "half an event":
            event = event_of(self.token_event(body, ids, fault=""))
            chunk(writer, event[: len(event) // 2])
        if fault in ("reply ends too early", "error in the stream"):
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.transport.close() if fault != "answer cut" else writer.transport.abort()

    async def _stand_still(self, leaving: "asyncio.Task[bytes]") -> bool:
        """Whether it goes on, when all is calm: each other one stands still for good."""
        calm = asyncio.create_task(self._calm.wait())
        await asyncio.wait([calm, leaving], return_when=asyncio.FIRST_COMPLETED)
        calm.cancel()
        if not leaving.done() and self._dice.random() < 0.5:
            return True
        await asyncio.wait([leaving])
        return False

    async def _comment(self, writer: asyncio.StreamWriter, leaving: "asyncio.Task[bytes]") -> bool:
        """Signs of life, and no token, until all is calm."""
        while not self._calm.is_set():
            chunk(writer, b": still here\n\n")
            await asyncio.sleep(0.2)
            if leaving.done():
                return False
        return True

    async def _say_without_end(
        self, writer: asyncio.StreamWriter, leaving: "asyncio.Task[bytes]"
    ) -> str:
        while not leaving.done():
            chunk(writer, b"data: " + b"x" * 65536)
            await writer.drain()
            await asyncio.sleep(0.001)
        return "left"

    # ---- what a kind says -----------------------------------------------------------------------

    def is_aborted(self, body: dict[str, Any]) -> bool:
        return False

    def forget_abort(self, body: dict[str, Any]) -> None:
        raise NotImplementedError  # abstract: each engine says it in its own words

    def abort_event(self, body: dict[str, Any]) -> bytes:
        raise NotImplementedError  # abstract: each engine says it in its own words

    def end_of_tokens(self, body: dict[str, Any], ids: list[int], reason: str) -> bytes:
        """The last token, before its time."""
        raise NotImplementedError  # abstract: each engine says it in its own words

    def ending(self, body: dict[str, Any], ids: list[int]) -> bytes:
        """That it has reached its limit with these."""
        raise NotImplementedError  # abstract: each engine says it in its own words

    def last_events(self, body: dict[str, Any], ids: list[int], reason: str) -> list[bytes]:
        return [event_of(self.last_event(body, ids, reason))]


class CountingVLLM(CountingEngine, VLLMStandIn):
    def routes(self) -> dict[str, Callable[[Any], Any]]:
        lines = super().routes()["/metrics"](None).replace("perc{", "perc_{")
        usage = f'vllm:kv_cache_usage_perc{{engine="0"}} {self.num_open / 256}\n'
        return super().routes() | {"/metrics": lambda _: lines + usage}

    def abort(self, body: dict[str, Any]) -> Any:
        self.refuses_aborts = self.fault == REFUSES_ABORTS and bool(body["request_ids"])
        if self.refuses_aborts:
            self.note("fault", name=REFUSES_ABORTS)
        return super().abort(body)

    def is_aborted(self, body: dict[str, Any]) -> bool:
        return f"generate-tokens-{body['request_id']}" in self.aborted

    def forget_abort(self, body: dict[str, Any]) -> None:
        self.aborted.discard(f"generate-tokens-{body['request_id']}")

    def abort_event(self, body: dict[str, Any]) -> bytes:
        return event_of(self._choice(body, [], "abort")) + b"data: [DONE]\n\n"

    def end_of_tokens(self, body: dict[str, Any], ids: list[int], reason: str) -> bytes:
        event = self._choice(body, ids[-1:], reason)
        return event_of(event | {"usage": self._usage(body, ids)})

    def ending(self, body: dict[str, Any], ids: list[int]) -> bytes:
        event = self._choice(body, [], "length")
        return event_of(event | {"usage": self._usage(body, ids)})

    def last_events(self, body: dict[str, Any], ids: list[int], reason: str) -> list[bytes]:
        return [*super().last_events(body, ids, reason), b"data: [DONE]\n\n"]


class CountingPlainVLLM(CountingVLLM, PlainVLLMStandIn):
    pass


class CountingLlamaCpp(CountingEngine, LlamaCppStandIn):
    def token_event(self, body: dict[str, Any], ids: list[int], *, fault: str) -> dict[str, Any]:
        event = super().token_event(body, ids, fault=fault)
        return event | {"content": f"t{ids[-1]:05d} "}

    def end_of_tokens(self, body: dict[str, Any], ids: list[int], reason: str) -> bytes:
        return event_of(self.token_event(body, ids, fault=""))

    def ending(self, body: dict[str, Any], ids: list[int]) -> bytes:
        return event_of(self.last_event(body, ids, "length"))


KINDS: dict[str, type[CountingEngine]] = {
    "vllm": CountingVLLM,
    "vllm-completions": CountingPlainVLLM,
    "llamacpp": CountingLlamaCpp,
}


def _counted(token_id: int, number: int) -> list[int]:
    ids = [token_id]
    for _ in range(number):
        ids.append(next_id(ids[-1]))
    return ids[1:]


async def serve(kind: str, port: int, *about: Any) -> None:
    """Until the standard input ends."""
    engine = KINDS[kind](*about)
    engine.port = port
    await engine.start()
    engine.note("up")
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        engine.obey(line.decode())
    with contextlib.suppress(asyncio.CancelledError):
        await engine.die()


def main() -> None:
    kind, port, name, facts, tokenizer, seed = sys.argv[1:]
    about = (name, Path(facts), Tokenizer.from_file(tokenizer), seed)
    asyncio.run(serve(kind, int(port), *about))


if __name__ == "__main__":
    main()
