"""How far one message and one stop walk through server/: which modules they enter, and how often.

A message walks from the reader to the engine's queue, and back to the socket with its first words;
a stop from the reader to the engine. Both are recorded from the reader on. The limits of 23 modules
and of 5 hold from where it has counted and parsed the frame, as it does with every one; from the
reader's first line it is 24 and 7, and docs/architecture.md says so too.

A reader of the code who follows them opens these files. One is a station where the way leads on
from it, into another module. It is entered again by another function than before; a task that it
starts itself goes on from there. How often calls enter a module, by whichever function, is
counted too: a loop over another module's functions shows there.
"""

import contextlib
import contextvars
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator
from types import FrameType
from typing import Any

import pytest

from server.config.intervals import Intervals
from server.engines.client import RequestOutput, SamplingParams, TokensPrompt
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.root import ROOT
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

BEGIN = "Connection._read"
PARSED = "Connection._queue"  # what the reader does with a frame that it has counted and parsed
READER = "api/websocket/connection"
# The largest number of entries into one module (message: `Run`, which holds the answer), and of all
# together. A few more than are measured, which is 16 and 160 of a message, 2 and 8 of a stop.
MAX_ENTRIES = {"message": (19, 175), "stop": (3, 11)}
# The clock causes nothing meanwhile: no lease is renewed, however slow the machine is.
QUIET = Intervals(lease=600.0, renewal=300.0, silence=500.0, index=300.0, sweep=300.0)
SERVER, TESTS = f"{ROOT}/server/", f"{ROOT}/tests/"
# What it delivers was published before, by a step that nobody waits for, and comes when it comes.
FEED = f"{ROOT}/sessions/connection/feed.py"
followed: contextvars.ContextVar[bool] = contextvars.ContextVar("followed", default=False)


class Walk:
    """What calls enter from another module, in order; a coroutine that goes on is no call."""

    def __init__(self) -> None:
        self.is_begun = False
        self.modules: list[str] = []
        self._num_before: int | None = None  # modules that the frame was counted and parsed in
        self.stations: defaultdict[str, set[str]] = defaultdict(set)  # the entries that lead on
        self._started: list[FrameType] = []  # kept, so that no other frame has the same address

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
        if is_of(FEED, frame.f_back):
            return
        self._started.append(frame)
        if not self.is_begun:
            self.is_begun = frame.f_code.co_qualname == BEGIN
            if not self.is_begun:
                return
        if frame.f_code.co_qualname == PARSED and self._num_before is None:
            self._num_before = len(self.modules)
        here, caller = module_of(frame), next(ours(frame.f_back), None)
        if not self.modules or caller is None or module_of(caller) != here:
            self.modules.append(here)
            if caller is not None:
                self._lead_on(caller)

    @property
    def from_parsed_frame(self) -> set[str]:
        """The modules from where the reader has counted and parsed the frame."""
        return {READER, *self.modules[self._num_before :]}

    def _lead_on(self, caller: FrameType) -> None:
        """Note by which function the caller's module was entered, unless the loop did that."""
        module, entry = module_of(caller), caller
        for frame in ours(caller):
            if module_of(frame) != module:
                self.stations[module].add(entry.f_code.co_qualname)
                return
            entry = frame


def ours(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame and its callers, as far as they are in server/."""
    while frame is not None:
        if is_of(SERVER, frame):
            yield frame
        frame = frame.f_back


def is_of(folder: str, frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(folder)


def module_of(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(SERVER).removesuffix(".py")


class Walkers(ScriptedEngine):
    """Ends the walk of a stop where it reaches the engine; holds what the test wants held."""

    def __init__(self) -> None:
        super().__init__(Dice(0))
        self.recordings = contextlib.ExitStack()
        self.held: set[str] = set()  # phases of requests that begin now

    def generate(
        self, prompt: TokensPrompt, sampling_params: SamplingParams, request_id: str, **more: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.requests[request_id].is_held |= self.held
        return super().generate(prompt, sampling_params, request_id, **more)

    async def abort(self, request_id: str) -> None:
        self.recordings.close()
        await super().abort(request_id)


@pytest.fixture
async def walks(redis_server: EmbeddedRedis) -> dict[str, Walk]:
    """What a question walks through until its first words are here, and a stop after that."""
    engine, walks = Walkers(), {"message": Walk(), "stop": Walk()}
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1, QUIET) as (worker,):
        followed.set(True)  # of what this client causes, in every task
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            settings = {"max_output_tokens": 2}
            await client.done(await client.ask(session, oracle_word(1), settings=settings))
            await client.wait(lambda: any(f["type"] == "session.updated" for f in client.frames))
            await client.send("session.unsubscribe", session_id="none")
            await client.next("error")  # what was asked for before is done
            engine.held = {"mid"}
            with walks["message"].recording():
                response = await client.ask(session, oracle_word(1))
                await client.next("response.output_text.delta")
            request = engine.requests[response]
            await request.reached["mid"].wait()
            run = worker.services.runs.local(response)
            assert run is not None
            await run.until_stored(run.sequence_number)  # nothing of the message is on its way
            engine.recordings.enter_context(walks["stop"].recording())
            await client.send("stop", response_id=response)
            await client.done(response)
    return walks


def test_a_message_walks_through_23_modules_at_most(walks: dict[str, Walk]) -> None:
    walk = walks["message"]
    assert len(walk.from_parsed_frame) <= 23, walk.modules
    assert len(set(walk.modules)) <= 24, walk.modules


def test_a_stop_walks_through_5_modules_at_most(walks: dict[str, Walk]) -> None:
    walk = walks["stop"]
    assert len(walk.from_parsed_frame) <= 5, walk.modules
    assert len(set(walk.modules)) <= 7, walk.modules


@pytest.mark.parametrize("what", ["message", "stop"])
def test_no_module_is_entered_much_more_often_than_the_way_needs(
    walks: dict[str, Walk], what: str
) -> None:
    entries = Counter(walks[what].modules)
    most, total = MAX_ENTRIES[what]
    assert max(entries.values()) <= most, entries
    assert entries.total() <= total, entries


@pytest.mark.parametrize("what", ["message", "stop"])
def test_no_module_is_entered_again_more_than_twice(walks: dict[str, Walk], what: str) -> None:
    stations = walks[what].stations
    assert stations
    assert {module: by for module, by in stations.items() if len(by) > 3} == {}
