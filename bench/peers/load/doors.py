"""Requests to a server: what is asked, when each piece of the answer came, and how it ended.

A `Door` is one way into a server. This file has the one that peers share, OpenAI's streaming HTTP;
Parley's are in `parley.py`. The client is written by hand because it shares two cores with what it
measures, and a client library takes more of them than it must.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.peers.load.prompts import Prompt

SILENCE_SECONDS = 300.0  # between two pieces; a long prompt on a slow engine takes a while


class LoadError(Exception):
    """A server refused or broke off."""


@dataclass(slots=True)
class Answer:
    """One answer as its client saw it; moments are of `time.monotonic()`."""

    asked: float
    arrivals: list[float] = field(default_factory=list)  # of pieces of text
    ended: float = 0.0  # or the moment of its stop
    num_tokens: int = 0  # as the server counts, or else pieces
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""

    @property
    def first_seconds(self) -> float:
        """Until the first text."""
        return self.arrivals[0] - self.asked

    @property
    def tokens_per_second(self) -> float:
        """After the first token, which is the prompt's doing."""
        seconds = self.arrivals[-1] - self.arrivals[0]
        return (self.num_tokens - 1) / seconds if seconds > 0 else 0.0

    @property
    def moments(self) -> list[float]:
        """At which something came; pieces that were read together came together."""
        return list(dict.fromkeys(self.arrivals))

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.moments)]


Until = Callable[[Answer], bool]  # asked at each piece: whether to stop here


class Conversation(Protocol):
    """Turns of one chat. The server has, or is sent, what was said before."""

    async def say(self, message: str, num_tokens: int, until: Until | None = None) -> Answer: ...


class Door(Protocol):
    """Greedy answers of exactly `num_tokens`, unless `until` stops one."""

    async def answer(
        self, prompt: Prompt, num_tokens: int, until: Until | None = None
    ) -> Answer: ...


class ChatDoor(Door, Protocol):
    def conversation(self) -> Conversation: ...


class JoinedDoor(Door, Protocol):
    """Answers are asked for while it is `joined`."""

    def joined(self) -> AbstractAsyncContextManager[None]: ...


class EventParser:
    """Bytes of an HTTP/1.1 answer → the data of its server-sent events. Knows no sockets."""

    def __init__(self) -> None:
        self.status: int | None = None  # known when the head has come
        self.body = b""  # not yet parsed; of a refusal, all of it
        self._raw = b""
        self.is_stream = False
        self._is_chunked = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now."""
        self._raw += data
        if self.status is None and not self._take_head():
            return []
        self._take_body()
        events = []
        if self.is_stream:
            *whole, self.body = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
            for event in whole:
                lines = [line[5:].strip() for line in event.split(b"\n") if line[:5] == b"data:"]
                if lines:
                    events.append(b"\n".join(lines))
        return events

    def _take_head(self) -> bool:
        head, end, rest = self._raw.partition(b"\r\n\r\n")
        if not end:
            return False
        lines = head.split(b"\r\n")
        self.status, self._raw = int(lines[0].split()[1]), rest
        fields = [line.lower().replace(b" ", b"") for line in lines[1:]]
        self._is_chunked = b"transfer-encoding:chunked" in fields
        self.is_stream = any(one.startswith(b"content-type:text/event-stream") for one in fields)
        return True

    def _take_body(self) -> None:
        if not self._is_chunked:
            self.body, self._raw = self.body + self._raw, b""
            return
        while True:
            line, end, rest = self._raw.partition(b"\r\n")
            if not end:
                return
            size = int(line.split(b";")[0], 16)
            if len(rest) < size + 2:
                return
            self.body += rest[:size]
            self._raw = rest[size + 2 :]
            if size == 0:
                return


async def events(
    port: int, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncGenerator[tuple[float, bytes], None]:
    """Post, and yield when each event came and its data. Closing the iterator hangs up.

    An answer that is no stream is one event: its whole body. Raises `LoadError` for a refusal.
    """
    payload = json.dumps(body).encode()
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Content-Length": str(len(payload)),
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    parser = EventParser()
    try:
        writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + payload)
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                data = await reader.read(1 << 16)
            now = time.monotonic()
            for event in parser.feed(data):
                yield now, event
            if not data:
                break
        if parser.status is None or parser.status >= 300:
            said = parser.body[:300].decode(errors="replace")
            raise LoadError(f"HTTP {parser.status}: {said}")
        if not parser.is_stream:
            yield now, parser.body
    finally:
        writer.transport.abort()


def take_event(answer: Answer, at: float, data: bytes) -> bool:
    """Enter one event of OpenAI's streams into the answer; whether it brought text."""
    body = json.loads(data)
    if body.get("error"):
        raise LoadError(str(body["error"])[:300])
    if usage := body.get("usage"):
        answer.num_tokens = usage.get("completion_tokens") or answer.num_tokens
        answer.prompt_tokens = usage.get("prompt_tokens") or answer.prompt_tokens
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens") or answer.cached_tokens
    text = "".join(map(text_of, body.get("choices") or []))
    if text:
        answer.text += text
        answer.arrivals.append(at)
    return bool(text)


def text_of(choice: dict[str, Any]) -> str:
    """Of a completion, or of a chat: some servers take what a model says for its thoughts."""
    delta = choice.get("delta") or {}
    names = ("content", "reasoning_content", "reasoning")
    return choice.get("text") or next((delta[name] for name in names if delta.get(name)), "")


class OpenAIDoor:
    """`/v1/completions` with token ids where the server takes them, else `/v1/chat/completions`."""

    def __init__(self, port: int, model: str, *, takes_ids: bool = True, **extra: object) -> None:
        self._port = port
        self._takes_ids = takes_ids
        self._fields = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
            **extra,
        }

    async def answer(self, prompt: Prompt, num_tokens: int, until: Until | None = None) -> Answer:
        if self._takes_ids:
            body: dict[str, Any] = {"prompt": prompt.token_ids}
            return await self._ask("/v1/completions", body, num_tokens, until)
        return await self.chat([{"role": "user", "content": prompt.message}], num_tokens, until)

    def conversation(self) -> Conversation:
        return History(self)

    async def chat(
        self, messages: list[dict[str, str]], num_tokens: int, until: Until | None = None
    ) -> Answer:
        return await self._ask("/v1/chat/completions", {"messages": messages}, num_tokens, until)

    async def _ask(
        self, path: str, body: dict[str, Any], num_tokens: int, until: Until | None
    ) -> Answer:
        answer = Answer(time.monotonic())
        fields = {**self._fields, **body, "max_tokens": num_tokens}
        async with aclosing(events(self._port, path, fields)) as stream:
            async for at, data in stream:
                if data == b"[DONE]":
                    break
                if take_event(answer, at, data) and until is not None and until(answer):
                    break
        answer.ended = time.monotonic()
        answer.num_tokens = answer.num_tokens or len(answer.arrivals)
        if not answer.arrivals:
            raise LoadError("an answer without text")
        return answer


class History:
    """A conversation whose client sends everything again with each turn, as OpenAI's API wants."""

    def __init__(self, door: OpenAIDoor) -> None:
        self._door = door
        self._messages: list[dict[str, str]] = []

    async def say(self, message: str, num_tokens: int, until: Until | None = None) -> Answer:
        self._messages.append({"role": "user", "content": message})
        answer = await self._door.chat(self._messages, num_tokens, until)
        self._messages.append({"role": "assistant", "content": answer.text})
        return answer
