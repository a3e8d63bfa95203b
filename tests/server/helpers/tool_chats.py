"""Chats of scripted models that call tools of a real tool process, at workers of this process."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.tracing.tracing import Tracing
from server.config.intervals import Intervals
from server.worker.app import Worker
from sessions.connection.link import Call
from sessions.model.errors import StoreUnavailable
from sessions.model.events import ObjectEvent
from sessions.model.records import Message
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.history import History
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.server.helpers.callers import CallingEngine
from tests.server.helpers.in_process import (
    PATIENT,
    LocalClient,
    kill,
    patient_history,
    running_workers,
)
from tests.server.helpers.scripted_engine import Dice
from tests.server.tools.helpers.running import GOOD, RunningTools

TAKEN_OVER = msgspec.structs.replace(PATIENT, sweep=0.2)
OUTPUT = "function_call_output"
Chats = Callable[..., AbstractAsyncContextManager["ToolChat"]]


def servers(folder: Path) -> dict[str, Any]:
    """One program under several names: each has another policy."""
    # No call that a test holds may end by itself, however slow the machine is.
    patient = {**GOOD, "env": {"FOLDER": str(folder)}, "timeout_seconds": 600}
    good = {**patient, "consent": "never"}
    return {
        "good": good,
        "dying": good,
        "few": {**good, "max_calls_per_answer": 2},
        "once": {**good, "consent": "once"},
        "asked": {**good, "consent": "always"},
    }


def calling(*calls: tuple[str, dict[str, Any]], text: str = "I look.\n") -> str:
    """What a model says that calls these tools."""
    said = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    return text + "".join(f"<tool_call>\n{one}\n</tool_call>\n" for one in said)


def offering(*labels: str, **more: Any) -> Frame:
    return {"tools": [{"type": "mcp", "server_label": label} for label in labels], **more}


@dataclass
class ToolChat:
    """Two workers, a client of the first, and the tools."""

    workers: list[Worker]
    client: LocalClient
    engine: CallingEngine
    tools: RunningTools
    history: Any

    async def ask(self, *labels: str, **fields: Any) -> tuple[str, str]:
        """A question in a new session, with the tools of these servers: session and response."""
        session = await self.client.new_session()
        settings = offering(*labels) | fields.pop("settings", {})
        response = await self.client.ask(session, "what?", settings=settings, **fields)
        return session, response

    def items(self, response_id: str) -> list[Frame]:
        """What the client heard of outputs, in order."""
        frames = [f for f in self.client.frames if "item" in f and f["response_id"] == response_id]
        return [frame["item"] for frame in frames if frame["item"]["type"] == OUTPUT]

    async def asks(self, response_id: str) -> Frame:
        """The first call, once it waits for a word, and everybody knows."""
        waiting = await self.item(response_id, "awaiting_consent")
        for _ in range(1000):
            events = await self.workers[1].store.runs.events(response_id)
            if any(isinstance(e, ObjectEvent) and e.data.get("item") == waiting for _, e in events):
                return waiting
            await asyncio.sleep(0.005)
        raise AssertionError("not stored")

    async def item(self, response_id: str, status: str, call: int = 0) -> Frame:
        """That of a call, once it has this status."""
        ending = f"_{call}"

        def find() -> Frame | None:
            found = self.items(response_id)
            return next(
                (i for i in found if i["status"] == status and i["call_id"].endswith(ending)), None
            )

        item: Frame = await self.client.wait(find, f"a call {status}")
        return item

    async def next_response(self, after: str) -> str:
        """The response that the server itself has begun after that one."""
        key = "calls_" + after.removeprefix("resp_")

        def find() -> str | None:
            created = [f for f in self.client.frames if f["type"] == "response.created"]
            return next((f["response"]["id"] for f in created if f["idempotency_key"] == key), None)

        response_id: str = await self.client.wait(find, "the next round")
        return response_id

    async def messages(self, session: str) -> list[Message]:
        page = await self.workers[-1].store.messages.path(None, session)
        return list(page.messages)

    def pipes(self, *names: str) -> list[Path]:
        paths = [self.tools.folder / name for name in names]
        for path in paths:
            os.mkfifo(path)
        return paths

    @contextlib.asynccontextmanager
    async def watching(self, session: str, worker: int = 1) -> AsyncIterator[LocalClient]:
        """A client of another worker that watches the session."""
        async with LocalClient(self.workers[worker], self.history) as client:
            await client.reply("session.subscribe", session_id=session)
            yield client

    @contextlib.asynccontextmanager
    async def admin(self, worker: Worker) -> AsyncIterator[LocalClient]:
        """A client of an admin, who is another user."""
        token = worker.config.admin_token
        async with LocalClient(worker, History(lambda: None), token) as client:
            yield client


async def die(worker: Worker, *clients: LocalClient) -> None:
    """Its process is killed, as far as anybody else can tell; these were its clients."""
    await kill(worker)

    def refuse(command: Any) -> Call:
        call = Call(())
        call.future.set_exception(StoreUnavailable("it is dead"))
        call.future.exception()  # nobody may ask
        return call

    # Of this one client: mypy allows no method to be replaced.
    worker.store.client._enqueue = refuse  # type: ignore[method-assign]
    for client in clients:
        await client.lose_worker()


async def say(path: Path, word: str) -> None:
    """The word that a tool waits for."""
    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(path.write_text, word + "\n")


@contextlib.asynccontextmanager
async def tool_chat(
    url: str,
    tools: RunningTools,
    engine: CallingEngine,
    intervals: Intervals = TAKEN_OVER,
    tracing: Tracing | None = None,
) -> AsyncIterator[ToolChat]:
    prefix = fresh_prefix()
    history = patient_history(url, prefix)
    path = tools.keeper.path
    dice = Dice(0)
    async with (
        running_workers(url, prefix, engine, dice, 2, intervals, tracing, path) as workers,
        LocalClient(workers[0], history) as client,
    ):
        yield ToolChat(workers, client, engine, tools, history)


def running_tools(folder: Path) -> Iterator[RunningTools]:
    running = RunningTools(folder, servers(folder))
    asyncio.run(_all_up(running))
    yield running
    running.close()


async def _all_up(running: RunningTools) -> None:
    """A question waits for its servers, but not as long as this machine may take."""
    client = running.client()
    found = await client.list_tools(PATIENCE)
    assert not found.troubles
    await client.close()
