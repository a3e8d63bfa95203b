"""How far one message and one stop walk through server/: which modules they enter, and how often.

A reader who follows them opens these files. Who adds a station to the way pays for it here.
"""

import contextlib
import contextvars
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import Dice, LocalClient, ScriptedEngine, running_workers

SERVER = str(ROOT / "server") + "/"
followed: contextvars.ContextVar[bool] = contextvars.ContextVar("followed", default=False)


class Walk:
    """The modules that calls enter from another module, in order; a way on is no return."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._started: list[FrameType] = []  # kept, so that no other frame has the same address

    @property
    def modules(self) -> set[str]:
        return set(self.entries)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(SERVER):
            return
        if not followed.get() or frame in self._started:  # a coroutine that goes on
            return
        self._started.append(frame)
        here, caller = module_of(frame), frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SERVER):
            caller = caller.f_back
        if caller is None or module_of(caller) != here:
            self.entries.append(here)


def module_of(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(SERVER).removesuffix(".py")


class Walkers(ScriptedEngine):
    """Ends the walk of a message, and that of a stop, where they reach the engine."""

    def __init__(self) -> None:
        super().__init__(Dice(0))
        self.recordings = contextlib.ExitStack()

    async def generate(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.recordings.close()
        async for output in super().generate(*args, **options):
            yield output

    async def abort(self, response_id: str) -> None:
        self.recordings.close()
        await super().abort(response_id)


@pytest.fixture
async def walks(redis_server: EmbeddedRedis, tmp_path: Path) -> dict[str, Walk]:
    """What a question, its stop while the answer is written, and its end walk through."""
    engine, walks = Walkers(), {"message": Walk(), "stop": Walk()}
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, tmp_path, engine, Dice(0), 1) as (worker,):
        followed.set(True)  # of what this client causes, in whatever task
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            engine.recordings.enter_context(walks["message"].recording())
            response = await client.ask(session, oracle_word(1))
            request = engine.requests[response]
            request.is_held.add("mid")
            await request.reached["mid"].wait()
            engine.recordings.enter_context(walks["stop"].recording())
            await client.send("stop", response_id=response)
            await client.done(response)
    return walks


def test_a_message_walks_through_29_modules_to_the_engine_at_most(walks: dict[str, Walk]) -> None:
    """20 is what we aim at."""
    assert len(walks["message"].modules) <= 29, walks["message"].entries


def test_a_stop_walks_through_9_modules_to_the_engine_at_most(walks: dict[str, Walk]) -> None:
    """5 is what we aim at."""
    assert len(walks["stop"].modules) <= 9, walks["stop"].entries
