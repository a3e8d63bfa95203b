"""`python -m bench.gpu.server`: many chats at once through the server, and a storm of stops.

All chats ask at the same moment and read their answers to the end. Then all ask once more, and when
each has some text, all stop at the same moment. What is left of the storm is checked: every answer
is stored with the text that its client saw, and the engine has every block back.

`--device cpu --shape tiny --chats 8` shows that it works, without a GPU.
"""

import argparse
import asyncio
import itertools
import json
import string
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import uvloop

from bench.gpu.cases import GPU_SHAPES
from bench.harness.chats import no_garbage_collection
from bench.harness.report import Figure, latencies, report
from bench.harness.servers import running_server, user_tokens
from bench.harness.socket_client import BenchSocket
from bench.peers.models import make
from tests.end_to_end.site.harness import Server

DELTA = b'"type":"response.output_text.delta"'
PROMPT_TOKENS = 128
PROCESSES = {"core": "engine.core", "workers": "server.worker", "Redis": "redis-server"}
ENDLESS = 3_000  # tokens: stopped long before

T = TypeVar("T")


class Chat:
    """One connection with one session, and what it saw of its last answer."""

    def __init__(self, number: int, token: str, socket: BenchSocket, session: str) -> None:
        self.token, self.session = token, session
        self._socket = socket
        letters = string.ascii_lowercase
        word = letters[number // len(letters) % len(letters)] + letters[number % len(letters)]
        self._prompt = " ".join([word] * PROMPT_TOKENS)  # no two chats share it
        self._response = ""
        self._asked = self._stopped = 0.0

    async def ask(self, max_tokens: int) -> None:
        self._socket.forget()
        self._asked = time.monotonic()
        settings = {"temperature": 1.0, "max_output_tokens": max_tokens}
        self._response = await self._socket.ask(self.session, self._prompt, **settings)

    async def first_text(self) -> float:
        """Seconds since the question."""
        return (await self._socket.next("response.output_text.delta")).at - self._asked

    def catch_up(self) -> None:
        self._socket.pass_over()

    def stop(self) -> None:
        self._stopped = time.monotonic()
        self._socket.send("stop", response_id=self._response)

    async def done(self) -> tuple[float, int]:
        """Seconds since the question, and how many tokens were written."""
        received = await self._socket.next("response.done")
        return received.at - self._asked, received.body["response"]["usage"]["output_tokens"]

    async def stopped(self) -> float:
        """Seconds since the stop."""
        return (await self._socket.next("response.done")).at - self._stopped

    def deltas(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Of the last answer: when they came, and their frames."""
        for at, payload in self._socket.received:
            if DELTA in payload and (body := json.loads(payload))["response_id"] == self._response:
                yield at, body

    @property
    def text(self) -> str:
        return "".join(body["delta"] for _, body in self.deltas())

    def close(self) -> None:
        self._socket.close()


async def load(server: Server, chats: list[Chat], max_tokens: int) -> list[Figure]:
    """All ask at once, and read to the end."""
    before, started = processor_seconds(server), time.monotonic()
    firsts, ends = await ask_all(chats, max_tokens, Chat.done)
    spent, took = processor_seconds(server), time.monotonic() - started
    times = ([at for at, _ in chat.deltas()] for chat in chats)
    gaps = [late - early for each in times for early, late in itertools.pairwise(each)]
    seconds = max(end for end, _ in ends)
    num_tokens = sum(count for _, count in ends)
    return [
        Figure("tokens/s, all chats, prompts included", num_tokens / seconds, None, "tok/s"),
        *latencies("first text, all at once", firsts, None),
        *latencies("between two deltas of a chat", gaps, None),
        *(
            Figure(f"processors busy: {name}", (spent[name] - before[name]) / took, None, "")
            for name in spent
        ),
    ]


def processor_seconds(server: Server) -> dict[str, float]:
    """Of each kind of process, all of a kind together."""
    kinds = {name: server.children(word) for name, word in PROCESSES.items()}
    kinds["this client"] = [psutil.Process()]
    return {name: sum(sum(each.cpu_times()[:2]) for each in of) for name, of in kinds.items()}


async def ask_all(
    chats: list[Chat], max_tokens: int, then: Callable[[Chat], Awaitable[T]]
) -> tuple[list[float], list[T]]:
    """Seconds to each first text, and what `then` gives of each chat."""

    async def one(chat: Chat) -> tuple[float, T]:
        await chat.ask(max_tokens)
        return await chat.first_text(), await then(chat)

    found = await asyncio.gather(*map(one, chats))
    return [first for first, _ in found], [after for _, after in found]


async def storm(server: Server, chats: list[Chat]) -> list[Figure]:
    """All stop at the same moment."""

    async def nothing(chat: Chat) -> None:
        pass

    await ask_all(chats, ENDLESS, nothing)
    for chat in chats:
        chat.catch_up()  # else looking through what came would count as the server's delay
    for chat in chats:
        chat.stop()
    seconds = await asyncio.gather(*(chat.stopped() for chat in chats))
    lost = sum(stored_text(server, chat) != chat.text for chat in chats)
    return [
        *latencies(f"stop, {len(chats)} at once", seconds, None),
        Figure("answers stored with other text than their client saw", lost, 0, ""),
    ]


def stored_text(server: Server, chat: Chat) -> str:
    """Of the session's last message."""
    path = f"/v1/sessions/{chat.session}/messages"
    messages = json.loads(server.get(path, chat.token)[1])["messages"]
    return "".join(part["text"] for part in messages[-1]["content"])


async def measure(server: Server, num_chats: int, max_tokens: int) -> list[Figure]:
    chats: list[Chat] = []
    for token in await user_tokens(server, num_chats):
        socket = await BenchSocket.open(server, token)
        chats.append(Chat(len(chats), token, socket, await socket.new_session()))
    free = server.metric("parley_kv_blocks_free")
    with no_garbage_collection():
        await load(server, chats, max_tokens)  # the first time makes room
        figures = await load(server, chats, max_tokens)
        figures += await storm(server, chats)
    held = free - server.metric("parley_kv_blocks_free")
    figures.append(Figure("blocks that nobody gave back", held, 0, ""))
    for chat in chats:
        chat.close()
    return figures


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if model is None:
            model = Path(folder) / arguments.shape
            make(GPU_SHAPES[arguments.shape], model)
        settings = {
            "PARLEY_DEVICE": arguments.device,
            "PARLEY_MAX_NUM_SEQS": str(arguments.chats),
            "PARLEY_MAX_NUM_QUEUED_REQS": "0",  # all ask at once
            "PARLEY_WORKERS": str(arguments.workers),
        }
        with running_server(model, **settings) as server:
            report("gpu_server", uvloop.run(measure(server, arguments.chats, arguments.tokens)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.server", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=GPU_SHAPES, default="0.6B")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint, instead of a shape")
    parser.add_argument("--chats", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256, help="length of each answer")
    parser.add_argument("--workers", type=int, default=4, help="web processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
