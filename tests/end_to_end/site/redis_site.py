"""A `parley serve` whose Redis the test can break: kill, fill, cut off or point elsewhere."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import is_stored
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import redis_binaries, running_redis
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_answer, oracle_word

BINARY = next(reversed(redis_binaries().values()))  # the oldest: 6.2
PACE = 100
SHORT = {"temperature": 0, "max_output_tokens": 20}
HEAL_SECONDS = 5.0
ASKED = 12  # times, so that each of two workers is among them


@dataclass
class Site:
    """A `parley serve` whose Redis can be broken."""

    server: Server
    redis: EmbeddedRedis
    proxy: FaultProxy

    def kill_redis(self) -> None:
        self.server.history.fault("kill -9 redis")
        assert self.redis.pid is not None
        os.kill(self.redis.pid, signal.SIGKILL)
        self.redis._process.wait()  # type: ignore[union-attr]

    async def mend(self) -> None:
        """What a test that failed has left broken."""
        if self.redis.poll() is not None:
            self.redis.start()
        self.proxy.command("pass")
        await self.ready()

    async def command(self, *words: str) -> Any:
        """One command by the operator, past the proxy."""
        client = RedisClient(self.redis.url)
        try:
            return await client.call(*words)
        finally:
            await client.close()

    def readyz(self) -> tuple[int, dict[str, str]]:
        status, body = self.server.get("/readyz")
        return status, json.loads(body)

    async def ready(self, seconds: float = PATIENCE) -> None:
        """Wait until each worker says so; raises AssertionError after the bound."""

        def are_ready() -> bool:  # the kernel chooses who is asked
            return all(self.readyz()[0] == 200 for _ in range(ASKED))

        await asyncio.to_thread(wait_for, are_ready, seconds)

    async def not_ready(self, cause: str, seconds: float = PATIENCE) -> str:
        """Wait until the server says that it is not ready because of `cause`, and return why."""
        causes: dict[str, str] = {}

        def is_named() -> bool:
            causes.update(self.readyz()[1])
            return cause in causes

        await asyncio.to_thread(wait_for, is_named, seconds)
        return causes[cause]

    def stored_text(self, session: str) -> str:
        """Of the session's last message."""
        messages = self.server.get_json(f"/v1/sessions/{session}/messages")["messages"]
        return str(messages[-1]["content"][0]["text"])


@contextmanager
def site(
    folder: Path, model: Path, redis: EmbeddedRedis, target: str = "", **environment: str
) -> Iterator[Site]:
    """A server on that Redis, through a proxy."""
    listen = f"{folder}/p" if not target else "127.0.0.1:0"
    with FaultProxy(target or redis.socket_path, listen) as proxy:
        url = f"unix://{proxy.address}" if not target else f"redis://{proxy.address}"
        settings = {"PARLEY_PACE": str(PACE), "PARLEY_REDIS_URL": url, **environment}
        server = Server(folder / "data", model, None, **settings)
        try:
            yield Site(server.start(), redis, proxy)
        finally:
            proxy.command("pass")
            server.close()


@contextmanager
def own_site(folder: Path, model: Path, **environment: str) -> Iterator[Site]:
    """A server with a Redis of its own."""
    with running_redis(BINARY) as redis, site(folder, model, redis, **environment) as here:
        yield here


async def ask(client: Client, num_tokens: int, word: int = 0) -> tuple[str, str]:
    """A new session with an answer that is under way: session and response."""
    session = await client.new_session()
    settings = {"temperature": 0, "max_output_tokens": num_tokens}
    response = await client.ask(session, oracle_word(word), settings=settings)
    await client.deltas(response, 10)
    return session, response


async def more(client: Client, response: str, count: int) -> None:
    """Wait for so many deltas beyond those that have come."""
    await client.deltas(response, client.answers[response].num_deltas + count)


async def whole(here: Site, client: Client, session: str, response: str, num_tokens: int) -> Answer:
    """The answer's end: its text is the whole one, for the client and in the store."""
    answer = await client.done(response)
    assert answer.final == oracle_answer(0, num_tokens)
    await here.ready()
    await client.wait(lambda: is_stored(client, response), "message.updated")
    assert await asyncio.to_thread(here.stored_text, session) == answer.final
    return answer


async def refusal(client: Client, session: str, key: str) -> Frame:
    """The error that answers a question that cannot be stored."""
    question = {"idempotency_key": key, "input": oracle_word(1), "on_busy": "queue"}
    frame = await client.reply("response.create", session_id=session, settings=SHORT, **question)
    assert frame["type"] == "error", frame
    error: Frame = frame["error"]
    assert error.get("retry_after_ms"), error
    return error
