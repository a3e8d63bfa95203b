"""How far one message and one stop walk through server/: which modules they enter, and how often.

A message walks from the reader to the engine's queue, and back to the socket with its first words;
a stop from the reader to the engine. A reader of the code who follows them opens these files. One
is opened again when a call leads back into it, to something that was not read there before.
"""

import contextlib
import contextvars
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import Dice, LocalClient, ScriptedEngine, running_workers

BEGIN = "Connection._queue"  # what the reader does with a frame that it has counted and parsed
SERVER, TESTS = f"{ROOT}/server/", f"{ROOT}/tests/"
followed: contextvars.ContextVar[bool] = contextvars.ContextVar("followed", default=False)


class Walk:
    """What calls enter from another module, in order; a coroutine that goes on is no call."""

    def __init__(self) -> None:
        self.is_begun = False
        self.entries: list[str] = []
        self.openings: Counter[str] = Counter()  # by module: entries by what was not read yet
        self._started: list[FrameType] = []  # kept, so that no other frame has the same address
        self._read: set[CodeType] = set()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not is_of(SERVER, frame) or not followed.get():
            return
        if frame in self._started or is_of(TESTS, frame.f_back):  # it goes on; a fake asks
            return
        self._started.append(frame)
        if not self.is_begun:
            self.is_begun = frame.f_code.co_qualname == BEGIN
            if not self.is_begun:
                return
        here, caller = module_of(frame), frame.f_back
        while caller is not None and not is_of(SERVER, caller):
            caller = caller.f_back
        if not self.entries or caller is None or module_of(caller) != here:
            self.entries.append(f"{here}: {frame.f_code.co_qualname}")
            self.openings[here] += frame.f_code not in self._read
        self._read.add(frame.f_code)


def is_of(folder: str, frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(folder)


def module_of(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(SERVER).removesuffix(".py")


class Walkers(ScriptedEngine):
    """Ends the walk of a stop where it reaches the engine."""

    def __init__(self) -> None:
        super().__init__(Dice(0))
        self.recordings = contextlib.ExitStack()

    async def abort(self, response_id: str) -> None:
        self.recordings.close()
        await super().abort(response_id)


@pytest.fixture
async def walks(redis_server: EmbeddedRedis, tmp_path: Path) -> dict[str, Walk]:
    """What a question walks through until its first words are here, and a stop after that."""
    engine, walks = Walkers(), {"message": Walk(), "stop": Walk()}
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, tmp_path, engine, Dice(0), 1) as (worker,):
        followed.set(True)  # of what this client causes, in whatever task
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            settings = {"max_output_tokens": 2}
            await client.done(await client.ask(session, oracle_word(1), settings=settings))
            await client.send("session.unsubscribe", session_id="none")
            await client.next("error")  # what was asked for before is done
            with walks["message"].recording():
                response = await client.ask(session, oracle_word(1))
                await client.next("response.output_text.delta")
            request = engine.requests[response]
            request.is_held.add("mid")
            await request.reached["mid"].wait()
            engine.recordings.enter_context(walks["stop"].recording())
            await client.send("stop", response_id=response)
            await client.done(response)
    return walks


def test_a_message_walks_through_24_modules_at_most(walks: dict[str, Walk]) -> None:
    """20 is what we aim at."""
    assert len(walks["message"].openings) <= 24, walks["message"].entries


def test_a_stop_walks_through_5_modules_at_most(walks: dict[str, Walk]) -> None:
    assert len(walks["stop"].openings) <= 5, walks["stop"].entries


def test_no_module_is_opened_more_than_nine_times_again(walks: dict[str, Walk]) -> None:
    """2 is what we aim at."""
    assert max(walks["message"].openings.values()) <= 10, walks["message"].openings
    assert max(walks["stop"].openings.values()) <= 3, walks["stop"].openings
