"""Two engine cores are one engine: one dies or drains, and its answers go on at the other."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.site.harness import TESTING, Answer, Client, Frame, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.root import ROOT
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_word

NUM_TOKENS = 300
GREEDY = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
SEEDED = {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5, "max_output_tokens": NUM_TOKENS}
NUM_ANSWERS = 12
MAX_GAP_SECONDS = 1.0
WORDS = ("rain", "mill", "bridge", "baker", "goat", "well", "market", "church")


@pytest.fixture(scope="module")
def _pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving_pair(oracle_model, tmp_path_factory.mktemp("pair"))


@pytest.fixture
async def new_pair(oracle_model: Path, tmp_path: Path) -> AsyncIterator[Server]:
    """One whose sessions are all of this test, so that both cores get as many of them."""
    for server in serving_pair(oracle_model, tmp_path):
        await asyncio.to_thread(wait_for, partial(are_ready, server), 30.0)
        yield server


def serving_pair(oracle_model: Path, folder: Path) -> Iterator[Server]:
    settings = TESTING | {"PARLEY_PACE": "100", "PARLEY_ENGINES": "native*2"}
    server = Server(folder / "data", oracle_model, None, **settings)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def pair(_pair: Server) -> Server:
    """A server of two cores, both of which serve."""
    await asyncio.to_thread(wait_for, lambda: are_ready(_pair), 30.0)
    return _pair


def are_ready(server: Server, number: int = 2) -> bool:
    return [one["state"] for one in engines(server)] == ["ready"] * number


def engines(server: Server) -> list[Frame]:
    status, body = server.get("/v1/admin/engines", admin_token(server))
    assert status == 200
    found: list[Frame] = json.loads(body)["engines"]
    return found


class Watched:
    """Answers of as many sessions, every other one sampled, and the longest pause in any of them.

    `expected` is what they say when nothing happens to them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.expected: list[str] = []
        self.responses: list[str] = []
        self.pauses: list[float] = []  # the longest of each
        self.restarts: list[int] = []

    async def ask(self, num_tokens_shown: int = 5) -> None:
        """Return when each has shown so many tokens."""
        asked = [await self._ask(each) for each in (GREEDY, SEEDED)]
        alone = [(await self._done(each)).final for each in asked]
        for number in range(NUM_ANSWERS):
            self.responses.append(await self._ask((GREEDY, SEEDED)[number % 2]))
            self.expected.append(alone[number % 2])
        for response in self.responses:
            await self._client.deltas(response, num_tokens_shown)

    async def _ask(self, settings: Frame) -> str:
        session = await self._client.new_session()
        return await self._client.ask(session, oracle_word(0), settings=settings)

    async def _done(self, response: str) -> Answer:
        return await self._client.done(response)

    async def done(self) -> list[Answer]:
        """When all have ended with the text that they would have had."""
        answers = [self._client.answers[each] for each in self.responses]
        lengths, moments = [0] * len(answers), [running_time()] * len(answers)
        self.pauses = [0.0] * len(answers)
        while not all(answer.done for answer in answers):
            await asyncio.sleep(0.01)  # the pause itself is what is measured
            now = running_time()
            for place, answer in enumerate(answers):
                if answer.done is None and len(answer.text) == lengths[place]:
                    self.pauses[place] = max(self.pauses[place], now - moments[place])
                else:
                    lengths[place], moments[place] = len(answer.text), now
        ends = [await self._done(each) for each in self.responses]
        assert [each.final for each in ends] == self.expected
        self.restarts = [each.done["response"].get("restarts", 0) for each in ends if each.done]
        return ends

    @property
    def gap(self) -> float:
        """By how much those that moved paused longer than those that nothing has happened to."""
        pairs = list(zip(self.pauses, self.restarts, strict=True))
        moved = [pause for pause, restarts in pairs if restarts]
        others = [pause for pause, restarts in pairs if not restarts]
        return max(moved, default=0.0) - max(others, default=0.0)


async def test_answers_go_on_at_the_other_core_when_one_is_killed(new_pair: Server) -> None:
    async with Client(new_pair) as client:
        watched = Watched(client)
        await watched.ask()
        assert min(one["sessions"] for one in engines(new_pair)) > 0
        new_pair.history.fault("kill -9 engine.core")
        new_pair.children("engine.core")[0].kill()
        await watched.done()
        assert max(watched.restarts) == 1 and min(watched.restarts) == 0
        assert watched.gap < MAX_GAP_SECONDS
        assert not [frame for frame in client.frames if frame["type"] == "connection.degraded"]


@pytest.mark.slow
async def test_ten_kills_change_no_character(pair: Server) -> None:
    num_moved, gaps = 0, []
    for number in range(10):
        await asyncio.to_thread(wait_for, lambda: are_ready(pair), 60.0)
        async with Client(pair) as client:
            watched = Watched(client)
            await watched.ask(num_tokens_shown=1 + 3 * number)
            pair.history.fault("kill -9 engine.core")
            oldest = min(pair.children("engine.core"), key=lambda core: core.create_time())
            oldest.kill()  # so they die in turns, and the pause before a restart stays short
            await watched.done()
            num_moved += sum(watched.restarts)
            gaps.append(round(watched.gap, 2))
    print(f"{num_moved} of {10 * NUM_ANSWERS} answers moved, with gaps of at most {gaps} s")
    assert num_moved > 10


@pytest.mark.slow
async def test_two_cores_find_as_much_in_their_caches_as_one_does(tmp_path: Path) -> None:
    hits: dict[str, float] = {}
    for engines in ("native", "native*2"):
        settings = TESTING | {"PARLEY_PACE": "0", "PARLEY_ENGINES": engines}
        server = Server(tmp_path / engines.replace("*", "-"), "demo", None, **settings)
        try:
            server.start()
            if engines != "native":
                await asyncio.to_thread(wait_for, partial(are_ready, server), 60.0)
            await ends_of_chats(server)
            hits[engines] = server.metric("parley_prefix_cache_hits_total")
        finally:
            server.close()
    print(f"tokens found in the cache: {hits}")
    assert hits["native*2"] >= 0.95 * hits["native"] > 1000


async def ends_of_chats(server: Server) -> list[Frame]:
    """Of all answers in 8 sessions of 4 turns, whose prompts begin as those of the turns before."""
    settings = {"temperature": 0, "max_output_tokens": 40}
    ends: list[Frame] = []
    async with Client(server) as client:
        sessions = [await client.new_session() for _ in WORDS]
        for turn in range(4):
            asked = [
                await client.ask(each, f"Tell me of the {word} of {turn} days.", settings=settings)
                for each, word in zip(sessions, WORDS, strict=True)
            ]
            for response in asked:
                done = (await client.done(response)).done
                assert done is not None
                ends.append(done)
    return ends


async def test_a_core_that_drains_loses_nothing_and_takes_nothing_new(pair: Server) -> None:
    async with Client(pair) as client, Http(pair, admin_token(pair)) as admin:
        watched = Watched(client)
        await watched.ask()
        await drain(admin, "native-1", move=False)
        await asyncio.to_thread(wait_for, lambda: draining(pair) == ["native-1"], 10.0)
        before = by_name(pair)["native-1"]["answers"]
        session = await client.new_session()
        late = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(late, 1)
        assert by_name(pair)["native-1"]["answers"] <= before
        await drain(admin, "native-1", move=True)  # what it still has goes on at the other
        await watched.done()
        assert watched.gap < MAX_GAP_SECONDS
        assert by_name(pair)["native-1"]["answers"] == 0
        for method, path in (("POST", "native-2/drain"), ("DELETE", "native-2")):
            refused = await admin.ask(method, f"/v1/admin/engines/{path}", json={})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "engine_refused")
        await admin.ask("POST", "/v1/admin/engines/native-1/resume")
        await asyncio.to_thread(wait_for, lambda: draining(pair) == [], 10.0)


@pytest.mark.slow
async def test_an_engine_is_added_and_removed_while_the_server_runs(pair: Server) -> None:
    async with Http(pair, admin_token(pair)) as admin:
        reply = await admin.ask("POST", "/v1/admin/engines", json={"engine": "native;name=third"})
        assert reply.status_code == 202, reply.text
        await asyncio.to_thread(wait_for, lambda: are_ready(pair, 3), 60.0)
        assert len(pair.children("engine.core")) == 3
        async with Client(pair) as client:
            watched = Watched(client)
            await watched.ask()
            assert by_name(pair)["third"]["answers"] > 0
            assert (await admin.ask("DELETE", "/v1/admin/engines/third")).status_code == 202
            await watched.done()
        await asyncio.to_thread(wait_for, lambda: len(pair.children("engine.core")) == 2, 30.0)
        assert sorted(by_name(pair)) == ["native-1", "native-2"]
        actions = (await admin.ask("GET", "/v1/admin/audit")).json()["entries"]
        assert [each["action"] for each in actions[:2]] == ["engine.remove", "engine.add"]


async def test_an_engine_that_cannot_be_added_is_refused_in_one_line(pair: Server) -> None:
    refusals = {
        "nativ": (400, "is no kind of engine"),
        "native;name=native-1": (409, "there is an engine native-1"),
        "native*2": (400, "one by one"),
        "native;for=other": (409, "there is no model other"),
        "vllm=https://gpu1;key=/etc/shadow": (400, "without its folder"),
        "openai=https://gpu1": (409, "knows no token ids"),
    }
    async with Http(pair, admin_token(pair)) as admin:
        for engine, (status, problem) in refusals.items():
            reply = await admin.ask("POST", "/v1/admin/engines", json={"engine": engine})
            assert reply.status_code == status and problem in reply.json()["error"]["message"]
        reply = await admin.ask("POST", "/v1/admin/engines/nothing/resume")
        assert reply.status_code == 404


async def test_users_and_admins_without_transcripts_add_no_engine_that_would_read_them(
    pair: Server,
) -> None:
    address = {"engine": "vllm=https://gpu1"}
    async with Http(pair, admin_token(pair)) as admin:
        for roles, scopes in ((["user"], []), (["user", "admin"], ["admin"])):
            body = {"name": "x", "roles": roles, "scopes": scopes}
            made = await admin.ask("POST", "/v1/admin/users", json=body)
            async with Http(pair, made.json()["token"]) as other:
                reply = await other.ask("POST", "/v1/admin/engines", json=address)
                assert reply.status_code == 403, reply.text


async def test_the_command_line_shows_engines_and_moves_them(pair: Server) -> None:
    async def parley(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "server", "engines", *words]
        command += ["--data-dir", str(pair.data_dir)]
        run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        return await asyncio.to_thread(run, command)

    shown = (await parley("list")).stdout.splitlines()
    assert shown[0].split()[:5] == ["name", "model", "kind", "state", "share"]
    assert [line.split()[0] for line in shown[1:]] == ["native-1", "native-2"]
    assert all("ready" in line and "50%" in line for line in shown[1:])
    assert (await parley("drain", "native-1")).returncode == 0
    listed = json.loads((await parley("list", "--json")).stdout)
    assert [one["draining"] for one in listed] == [True, False]
    refused = await parley("drain", "native-2")
    assert refused.returncode != 0 and "no other engine takes answers" in refused.stderr
    assert "nothing: it may go" in (await parley("list")).stdout
    assert (await parley("resume", "native-1")).returncode == 0
    await asyncio.to_thread(wait_for, lambda: draining(pair) == [], 10.0)


@pytest.mark.parametrize("name", ["ready", "draining", "answers", "kv_blocks_free", "moved_total"])
async def test_each_engine_has_its_figures(pair: Server, name: str) -> None:
    def engines_of() -> list[str]:
        lines = pair.get("/metrics")[1].decode().splitlines()
        found = [line for line in lines if line.startswith(f"parley_engine_{name}{{")]
        return sorted(line.partition('engine="')[2].partition('"')[0] for line in found)

    # What a core does is known a second after it was joined.
    await asyncio.to_thread(wait_for, lambda: engines_of() == ["native-1", "native-2"], 30.0)


async def drain(admin: Http, name: str, *, move: bool) -> None:
    path = f"/v1/admin/engines/{name}/drain"
    reply = await admin.ask("POST", path, json={"move": move})
    assert reply.status_code == 202, reply.text


def by_name(server: Server) -> dict[str, Any]:
    return {one["name"]: one for one in engines(server)}


def draining(server: Server) -> list[str]:
    return [one["name"] for one in engines(server) if one["draining"]]
