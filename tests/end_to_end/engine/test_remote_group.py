"""Two real engines of other kinds as one: one dies or drains, its answers go on at the other."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.engine.test_engine_group import WORDS, ends_of_chats
from tests.end_to_end.site.harness import TESTING, Answer, Client, Frame, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.running_time import running_time
from tests.server.engines.remote.real.servers import SERVERS, RealServer

pytestmark = pytest.mark.slow

NUM_TOKENS = 320
GREEDY = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
MIN_RUNNING = 10  # answers, when an engine dies
SHOWN_CHARACTERS = 60  # of each of them
MAX_GAP_SECONDS = 1.0
MIN_EQUAL = 0.9  # of answers that go on at an engine alike; it reads in other batches
TOPICS = (*WORDS, *("boat", "storm", "fiddle", "whale", "winter", "mayor", "garden", "lantern"))
LLAMA, ALONE = "llamacpp", "llamacpp-of-one"  # the latter computes the same bits in any batch


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines, and a Parley before them."""

    engines: Sequence[RealServer]
    parley: Server

    @property
    def names(self) -> list[str]:
        return [f"engine-{number}" for number in range(len(self.engines))]

    async def until_ready(self) -> None:
        await asyncio.to_thread(wait_for, partial(are_ready, self.parley), PATIENCE)

    def kill(self, number: int) -> None:
        self.parley.history.fault(f"kill -9 {self.engines[number].name}")
        self.engines[number].kill()

    async def restart(self, *numbers: int) -> None:
        """These, or all."""
        for number in numbers or range(len(self.engines)):
            self.parley.history.fault(f"kill -9 {self.engines[number].name}")
            self.engines[number].end()
            self.engines[number].start()
            await self.engines[number].serve()
        await self.until_ready()


@pytest.fixture(
    params=[(ALONE, ALONE), (ALONE, "vllm")],
    ids="+".join,
)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    yield from serving_pair(request.param, tmp_path)


@pytest.fixture
def usual_pair(tmp_path: Path) -> Iterator[Pair]:
    yield from serving_pair((LLAMA, LLAMA), tmp_path)


def serving_pair(kinds: Sequence[str], folder: Path) -> Iterator[Pair]:
    started: list[RealServer] = []
    server: Server | None = None
    try:
        for number, kind in enumerate(kinds):
            engine = SERVERS[kind](folder, number)
            started.append(engine)
            engine.start()
        asyncio.run(serve_all(started))
        server = Server(folder / "data", "demo", None, **TESTING, PARLEY_ENGINES=entries(started))
        pair = Pair(started, server.start())
        wait_for(partial(are_ready, server), PATIENCE)
        yield pair
    finally:
        if server is not None:
            server.close()
        for engine in started:
            engine.end()


async def serve_all(started: Sequence[RealServer]) -> None:
    await asyncio.gather(*(engine.serve() for engine in started))


def entries(engines: Sequence[RealServer]) -> str:
    """As operators name them."""
    return " ".join(
        f"{engine.kind}=http://127.0.0.1:{engine.port};name=engine-{number}"
        for number, engine in enumerate(engines)
    )


def engines_of(server: Server) -> dict[str, Frame]:
    """What admins see of each engine."""
    status, body = server.get("/v1/admin/engines", admin_token(server))
    assert status == 200
    return {one["name"]: one for one in json.loads(body)["engines"]}


def are_ready(server: Server) -> bool:
    return [one["state"] for one in engines_of(server).values()] == ["ready"] * 2


class Watched:
    """Answers of as many sessions, and the longest pause in each."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._responses: list[str] = []
        self._shown: list[str] = []  # when an engine was lost
        self.pauses: list[float] = []  # the longest of each
        self.restarts: list[int] = []

    @property
    def gap(self) -> float:
        """By how much those that moved paused longer than those that nothing has happened to."""
        pairs = list(zip(self.pauses, self.restarts, strict=True))
        moved = [pause for pause, restarts in pairs if restarts]
        others = [pause for pause, restarts in pairs if not restarts]
        return max(moved, default=0.0) - max(others, default=0.0)

    async def ask(self) -> None:
        sessions = [await self._client.new_session() for _ in TOPICS]
        asked = (
            self._client.ask(session, f"Tell me a story about the {topic}.", settings=GREEDY)
            for session, topic in zip(sessions, TOPICS, strict=True)
        )
        self._responses = await asyncio.gather(*asked)

    async def until_amid(self) -> None:
        """The first to be asked may end before the last have begun."""
        await self._client.wait(lambda: self._num_amid >= MIN_RUNNING or self._num_running == 0)
        self._shown = [answer.text for answer in self._answers if not answer.done]
        assert len(self._shown) >= MIN_RUNNING

    async def done(self) -> list[Answer]:
        lengths, moments = [0] * len(self._answers), [running_time()] * len(self._answers)
        self.pauses = [0.0] * len(self._answers)
        while not all(answer.done for answer in self._answers):
            await asyncio.sleep(0.01)  # the pause itself is what is measured
            now = running_time()
            for place, answer in enumerate(self._answers):
                if answer.done is None and len(answer.text) == lengths[place]:
                    self.pauses[place] = max(self.pauses[place], now - moments[place])
                else:
                    lengths[place], moments[place] = len(answer.text), now
        ends = [await self._client.done(each) for each in self._responses]
        responses = [answer.done["response"] for answer in ends if answer.done]
        reasons = {each["status_details"]["reason"] for each in responses}
        assert reasons <= {"max_output_tokens", "eos"}
        self.restarts = [each.get("restarts", 0) for each in responses]
        for shown in self._shown:
            assert any(answer.final.startswith(shown) for answer in ends)
        return ends

    @property
    def _num_amid(self) -> int:
        return sum(
            len(answer.text) >= SHOWN_CHARACTERS and not answer.done for answer in self._answers
        )

    @property
    def _num_running(self) -> int:
        return len(TOPICS) - sum(answer.done is not None for answer in self._answers)

    @property
    def _answers(self) -> list[Answer]:
        answers = self._client.answers
        return [answers[each] for each in self._responses if each in answers]


async def test_answers_go_on_at_the_other_engine_when_one_is_killed(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    are_alike = pair.engines[0].name == pair.engines[1].name
    lines, num_equal, num_answers = [], 0, 0
    for number in (0, 1, 0, 1) if are_alike else (0, 1):
        async with Client(pair.parley) as client:
            unkilled = Watched(client)
            await unkilled.ask()
            whole = await unkilled.done()
            if are_alike:
                await pair.restart()  # their caches are empty
            watched = Watched(client)
            await watched.ask()
            await watched.until_amid()
            pair.kill(number)
            answers = await watched.done()
            num_moved = sum(watched.restarts)
            assert 0 < num_moved < len(answers) and max(watched.restarts) == 1
            assert watched.gap < MAX_GAP_SECONDS
            assert not [frame for frame in client.frames if frame["type"] == "connection.degraded"]
        equal = sum(one.final == other.final for one, other in zip(answers, whole, strict=True))
        num_answers, num_equal = num_answers + len(answers), num_equal + equal
        lines.append(
            f"{pair.engines[number].name} killed: {num_moved} of {len(answers)} answers moved, "
            f"with a gap of {watched.gap:.2f} s; {equal} texts are as the unkilled ones"
        )
        await pair.restart(number)
    with capsys.disabled():
        print("", *lines, sep="\n")
    if are_alike:
        assert num_equal >= MIN_EQUAL * num_answers


async def test_an_engine_that_drains_loses_nothing(usual_pair: Pair) -> None:
    server = usual_pair.parley
    async with Client(server) as client, Http(server, admin_token(server)) as admin:
        watched = Watched(client)
        await watched.ask()
        await watched.until_amid()
        path = "/v1/admin/engines/engine-0/drain"
        assert engines_of(server)["engine-0"]["answers"] > 0
        assert (await admin.ask("POST", path, json={"move": True})).status_code == 202
        await watched.done()
        assert sum(watched.restarts) > 0
        assert engines_of(server)["engine-0"]["answers"] == 0
        assert watched.gap < MAX_GAP_SECONDS


async def test_two_engines_find_as_much_in_their_caches_as_one_does(
    usual_pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"two": await cached_tokens(usual_pair.parley)}
    usual_pair.parley.close()
    (alone, _) = usual_pair.engines
    alone.end()  # and what it has cached
    alone.start()
    await alone.serve()
    server = Server(tmp_path / "one", "demo", None, **TESTING, PARLEY_ENGINES=entries([alone]))
    try:
        server.start()
        found["one"] = await cached_tokens(server)
    finally:
        server.close()
    with capsys.disabled():
        print(f"\ntokens of prompts found in a cache: {found}")
    assert found["two"] >= 0.95 * found["one"] > 1000


async def cached_tokens(server: Server) -> int:
    ends = await ends_of_chats(server)
    return sum(done["response"]["usage"]["cached_tokens"] for done in ends)
