"""Two engine cores are one engine: one dies or drains, and its answers go on at the other."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.site.harness import TESTING, Answer, Client, Frame, Server
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_word

NUM_TOKENS = 150
GREEDY = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
SEEDED = {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5, "max_output_tokens": NUM_TOKENS}
NUM_ANSWERS = 12
MAX_GAP_SECONDS = 1.0


@pytest.fixture(scope="module")
def _pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pair")
    settings = TESTING | {"PARLEY_PACE": "60", "PARLEY_ENGINES": "native*2"}
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
    """Answers of as many sessions, and the longest pause between two of their texts."""

    def __init__(self, client: Client, settings: Frame) -> None:
        self._client, self._settings = client, settings
        self.responses: list[str] = []
        self.sessions: list[str] = []
        self.longest = 0.0

    async def ask(self) -> None:
        for _ in range(NUM_ANSWERS):
            session = await self._client.new_session()
            self.sessions.append(session)
            answer = await self._client.ask(session, oracle_word(0), settings=self._settings)
            self.responses.append(answer)

    async def done(self) -> list[Answer]:
        answers = [self._client.answers[each] for each in self.responses]
        lengths, moments = [0] * len(answers), [time.monotonic()] * len(answers)
        while not all(answer.done for answer in answers):
            await asyncio.sleep(0.01)  # the pause itself is what is measured
            now = time.monotonic()
            for place, answer in enumerate(answers):
                if answer.done is None and len(answer.text) == lengths[place]:
                    self.longest = max(self.longest, now - moments[place])
                else:
                    lengths[place], moments[place] = len(answer.text), now
        return [await self._client.done(each) for each in self.responses]


async def undisturbed(client: Client, settings: Frame) -> str:
    session = await client.new_session()
    response = await client.ask(session, oracle_word(0), settings=settings)
    return (await client.done(response)).final


@pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_answers_go_on_at_the_other_core_when_one_is_killed(
    pair: Server, settings: Frame
) -> None:
    async with Client(pair) as client:
        expected = await undisturbed(client, settings)
        watched = Watched(client, settings)
        await watched.ask()
        for response in watched.responses:
            await client.deltas(response, 5)
        there = {one["name"]: one["answers"] for one in engines(pair)}
        assert sum(there.values()) == NUM_ANSWERS and min(there.values()) > 0
        pair.history.fault("kill -9 engine.core")
        pair.children("engine.core")[0].kill()
        answers = await watched.done()
        assert [answer.final for answer in answers] == [expected] * NUM_ANSWERS
        restarts = [answer.done["response"].get("restarts", 0) for answer in answers if answer.done]
        assert sum(restarts) in there.values() and max(restarts) == 1
        assert watched.longest < MAX_GAP_SECONDS
        assert not [frame for frame in client.frames if frame["type"] == "connection.degraded"]


async def test_a_core_that_drains_loses_nothing_and_takes_nothing_new(pair: Server) -> None:
    async with Client(pair) as client, Http(pair, admin_token(pair)) as admin:
        expected = await undisturbed(client, GREEDY)
        watched = Watched(client, GREEDY)
        await watched.ask()
        for response in watched.responses:
            await client.deltas(response, 5)
        await drain(admin, "native-1", move=False)
        await asyncio.to_thread(wait_for, lambda: draining(pair) == ["native-1"], 10.0)
        more = await undisturbed(client, GREEDY | {"max_output_tokens": 5})
        assert expected.startswith(more.rstrip())
        await drain(admin, "native-1", move=True)  # what it still has goes on at the other
        answers = await watched.done()
        assert [answer.final for answer in answers] == [expected] * NUM_ANSWERS
        assert watched.longest < MAX_GAP_SECONDS
        assert by_name(pair)["native-1"]["answers"] == 0
        for method, path in (("POST", "native-2/drain"), ("DELETE", "native-2")):
            refused = await admin.ask(method, f"/v1/admin/engines/{path}", json={})
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_field")
        await admin.ask("POST", "/v1/admin/engines/native-1/resume")
        await asyncio.to_thread(wait_for, lambda: draining(pair) == [], 10.0)


async def test_an_engine_is_added_and_removed_while_the_server_runs(pair: Server) -> None:
    async with Client(pair) as client, Http(pair, admin_token(pair)) as admin:
        reply = await admin.ask("POST", "/v1/admin/engines", json={"engine": "native;name=third"})
        assert reply.status_code == 202, reply.text
        await asyncio.to_thread(wait_for, lambda: are_ready(pair, 3), 60.0)
        assert len(pair.children("engine.core")) == 3
        watched = Watched(client, GREEDY)
        await watched.ask()
        for response in watched.responses:
            await client.deltas(response, 5)
        assert by_name(pair)["third"]["answers"] > 0
        assert (await admin.ask("DELETE", "/v1/admin/engines/third")).status_code == 202
        answers = await watched.done()
        assert len({answer.final for answer in answers}) == 1
        await asyncio.to_thread(wait_for, lambda: len(pair.children("engine.core")) == 2, 30.0)
        assert sorted(by_name(pair)) == ["native-1", "native-2"]
        actions = (await admin.ask("GET", "/v1/admin/audit")).json()["entries"]
        assert [each["action"] for each in actions[:2]] == ["engine.remove", "engine.add"]


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ("nativ", "is no kind of engine"),
        ("native;name=native-1", "there is an engine native-1"),
        ("native*2", "one by one"),
        ("native;for=other", "there is no model other"),
        ("vllm=https://gpu1;key=/etc/shadow", "without its folder"),
    ],
)
async def test_an_engine_that_cannot_be_added_is_refused_in_one_line(
    pair: Server, engine: str, problem: str
) -> None:
    async with Http(pair, admin_token(pair)) as admin:
        reply = await admin.ask("POST", "/v1/admin/engines", json={"engine": engine})
        assert reply.status_code == 422 and problem in reply.json()["error"]["message"]
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


async def test_each_engine_has_its_figures(pair: Server) -> None:
    body = pair.get("/metrics")[1].decode()
    for name in ("ready", "draining", "answers", "kv_blocks_free", "moved_total"):
        lines = [line for line in body.splitlines() if line.startswith(f"parley_engine_{name}{{")]
        assert len(lines) == 2 and all('engine="native-' in line for line in lines)


async def drain(admin: Http, name: str, *, move: bool) -> None:
    path = f"/v1/admin/engines/{name}/drain"
    reply = await admin.ask("POST", path, json={"move": move})
    assert reply.status_code == 202, reply.text


def by_name(server: Server) -> dict[str, Any]:
    return {one["name"]: one for one in engines(server)}


def draining(server: Server) -> list[str]:
    return [one["name"] for one in engines(server) if one["draining"]]
