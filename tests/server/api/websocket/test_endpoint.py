"""`WebSocketEndpoint`: who is let in, and by which close code the others learn why not."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message, Scope

from server.api.websocket.connection import Connection
from server.protocol.close_codes import CloseCode
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.redis_server import fresh_prefix
from tests.server.helpers.in_process import TOKEN, Wire, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

GOOD = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]


@pytest.fixture
async def worker(redis_server: EmbeddedRedis) -> AsyncIterator[Worker]:
    url, prefix = redis_server.url, fresh_prefix()
    engine = ScriptedEngine(Dice(0))
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        yield worker


class Handshake:
    """One handshake, and what the server has sent since; `leave` is the client's going."""

    def __init__(self, worker: Worker, protocols: list[str], headers: Any = GOOD) -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self._received: asyncio.Queue[Message] = asyncio.Queue()
        self._received.put_nowait({"type": "websocket.connect"})
        scope: Scope = {
            "type": "websocket",
            "path": "/v1/ws",
            "raw_path": b"/v1/ws",
            "query_string": b"",
            "headers": headers,
            "subprotocols": protocols,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "scheme": "ws",
            "extensions": {"websocket.http.response": {}},
        }
        wire = Wire(self._received, self.sent)
        self.task = asyncio.create_task(wire.run(worker.app, scope))

    async def leave(self) -> None:
        self._received.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await self.task

    async def refused(self) -> tuple[str | None, int]:
        """The subprotocol that was accepted, and the code of the close after it."""
        accepted, closed = await self.sent.get(), await self.sent.get()
        await self.task
        assert (accepted["type"], closed["type"]) == ("websocket.accept", "websocket.close")
        return accepted["subprotocol"], closed["code"]

    async def denied(self) -> int:
        """The status of an answer without an upgrade."""
        answer = await self.sent.get()
        await self.task
        assert answer["type"] == "websocket.http.response.start"
        return int(answer["status"])


async def test_a_connection_counts_until_it_is_gone(worker: Worker) -> None:
    handshake = Handshake(worker, ["chat.v1"])
    assert (await handshake.sent.get())["subprotocol"] == "chat.v1"
    assert '"connection.ready"' in (await handshake.sent.get())["text"]
    counter = worker.services.connections
    assert (len(worker.connections), counter.num_open) == (1, 1)
    await handshake.leave()
    assert (len(worker.connections), counter.num_open) == (0, 0)


async def test_nothing_of_a_connection_that_is_gone_waits_for_the_garbage_collection(
    worker: Worker,
) -> None:
    gc.collect()
    gc.disable()  # else it might come to its help
    try:
        handshake = Handshake(worker, ["chat.v1"])
        for _ in range(2):
            await handshake.sent.get()
        assert sum(type(one) is Connection for one in gc.get_objects()) == 1
        await handshake.leave()
        del handshake
        await asyncio.sleep(0)
        assert not any(type(one) is Connection for one in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize(("offered", "selected"), [([], None), (["chat.v9", "x"], "chat.v9")])
async def test_without_a_common_protocol_one_of_the_offers_is_taken_and_closed(
    worker: Worker, offered: list[str], selected: str | None
) -> None:
    handshake = Handshake(worker, offered)
    assert await handshake.refused() == (selected, CloseCode.NO_COMMON_PROTOCOL)


async def test_a_bearer_token_alone_is_no_protocol(worker: Worker) -> None:
    assert await Handshake(worker, [f"bearer.{TOKEN}"], GOOD[:1]).denied() == 400


async def test_a_wrong_token_is_refused_by_the_close(worker: Worker) -> None:
    headers = [GOOD[0], (b"authorization", b"Bearer nobody-s-token-of-good-length")]
    handshake = Handshake(worker, ["chat.v1"], headers)
    assert await handshake.refused() == ("chat.v1", CloseCode.UNAUTHENTICATED)


async def test_a_user_with_too_many_connections_gets_no_other_one(worker: Worker) -> None:
    worker.services.connections.limits = worker.config.settings.limits.__class__(
        max_connections_per_user=1, messages_per_s=0
    )
    first = Handshake(worker, ["chat.v1"])
    assert (await first.sent.get())["type"] == "websocket.accept"
    assert await Handshake(worker, ["chat.v1"]).refused() == ("chat.v1", CloseCode.TOO_MANY)
    await first.leave()


async def test_nobody_is_let_in_by_a_store_that_was_not_checked(worker: Worker) -> None:
    worker.store.client.is_trusted = False
    assert await Handshake(worker, ["chat.v1"]).refused() == ("chat.v1", CloseCode.TRY_LATER)
    worker.store.client.is_trusted = True


async def test_a_bug_on_the_way_in_is_a_close_and_no_broken_socket(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(worker.access.authenticator, "user", fail)
    assert await Handshake(worker, ["chat.v1"]).refused() == ("chat.v1", CloseCode.INTERNAL)
    assert worker.services.connections.num_open == 0
