"""Responses whose worker, core or Redis is killed amid them, and stops in every mode.

`RESPONSE_DEATHS` is how many responses are asked for, `RESPONSE_STOPS` how many are stopped, and
`RESPONSE_SEED` what the choices come from.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_answer, oracle_word

NUM_RESPONSES = int(os.environ.get("RESPONSE_DEATHS", "200"))
NUM_STOPS = int(os.environ.get("RESPONSE_STOPS", "300"))
SEED = int(os.environ.get("RESPONSE_SEED", "30"))
AT_ONCE = 8
NUM_TOKENS = 120
CORE_SECONDS = 15.0  # between two deaths: starts that fail are counted, and end Parley
MAX_OWNERS_LOST = 2  # of one answer: what outlives a third one is given up, as it may kill them
VICTIMS = ("server.worker", "engine.core", "redis-server")
MODES = ("background", "stream", "unstored stream", "unstored")
Event = dict[str, Any]

pytestmark = pytest.mark.slow


@pytest.fixture
async def asker(server: Server) -> AsyncIterator["Asker"]:
    asker = Asker(server)
    yield asker
    await asker.http.aclose()


@pytest.fixture(scope="module")
def server(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Leases of a server in use: those of tests end where a busy machine stands still.
    environment = {"PARLEY_WORKERS": "2", "PARLEY_PACE": "40"}
    server = Server(
        tmp_path_factory.mktemp("responses") / "data", oracle_model, None, **environment
    )
    server.history.engines.clear()  # which count requests that no history knows
    try:
        yield server.start()
    finally:
        server.close()


@dataclass(eq=False)
class Followed:
    """One response as a client sees it that comes back whenever its stream breaks."""

    asked: int
    id: str = ""
    events: list[Event] = field(default_factory=list)
    num_breaks: int = 0
    num_deaths: int = 0  # of workers, since it was asked for

    @property
    def is_over(self) -> bool:
        return bool(self.events) and "response" in self.events[-1] and len(self.events) > 2


class Asker:
    """What OpenAI's clients do over HTTP, with patience."""

    def __init__(self, server: Server) -> None:
        self._server = server
        headers = {"Authorization": f"Bearer {server.token}"}
        self.http = httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=30)

    async def ask(self, asked: int, key: str) -> str:
        body = {
            "input": oracle_word(asked),
            "background": True,
            "max_output_tokens": NUM_TOKENS,
            "temperature": 0,
        }
        answer = await self.until_answered("POST", "/v1/responses", json=body, key=key)
        return str(answer["id"])

    async def until_answered(
        self, method: str, path: str, *, json: Event | None = None, key: str = ""
    ) -> Event:
        headers = {"Idempotency-Key": key} if key else {}
        deadline = time.monotonic() + PATIENCE
        while True:
            problem = "no answer"
            with contextlib.suppress(httpx2.HTTPError):
                answer = await self.http.request(method, path, json=json, headers=headers)
                if answer.status_code == 200:
                    body: Event = answer.json()
                    return body
                problem = answer.text
                assert answer.status_code >= 500 or answer.status_code == 429, problem
            assert time.monotonic() < deadline, problem
            await asyncio.sleep(0.1)

    async def follow(self, followed: Followed) -> None:
        deadline = time.monotonic() + PATIENCE
        while not followed.is_over:
            assert time.monotonic() < deadline, followed
            with contextlib.suppress(httpx2.HTTPError):
                async for event in self.events(followed.id, len(followed.events) - 1):
                    if event["type"] != "error":
                        followed.events.append(event)
                    else:
                        assert event["code"] != "response_not_found", event
            followed.num_breaks += not followed.is_over
            await asyncio.sleep(0.05)

    async def events(self, response_id: str, after: int = -1) -> AsyncIterator[Event]:
        query = "stream=true" + (f"&starting_after={after}" if after >= 0 else "")
        path = f"/v1/responses/{response_id}?{query}"
        async with self.http.stream("GET", path) as answer:
            if answer.status_code != 200:
                body = (await answer.aread()).decode()
                assert answer.status_code >= 500 or answer.status_code == 429, body
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    async def whole(self, response_id: str) -> list[Event]:
        """All events, read in one go."""
        found = Followed(0, response_id)
        await self.follow(found)
        return found.events


async def kill(
    server: Server, dice: random.Random, deaths: Counter[str], alive: set[Followed]
) -> None:
    """Until it is cancelled."""
    died_at: dict[str, float] = {}
    rests = {"engine.core": CORE_SECONDS}
    while True:
        await asyncio.sleep(dice.uniform(0.5, 2.0))
        left = [victim for victim in VICTIMS if not deaths[victim]]
        victim = dice.choice(left or VICTIMS)  # each of them, however few responses there are
        if time.monotonic() - died_at.get(victim, -1e9) < rests.get(victim, 0.0):
            continue
        if victim == "engine.core" and not await asyncio.to_thread(server.is_ready):
            continue  # it is not up yet since the last time
        is_worker = victim == "server.worker"
        if is_worker and any(each.num_deaths == MAX_OWNERS_LOST for each in alive):
            continue
        children = sorted(server.children(victim), key=lambda child: child.pid)
        if len(children) >= 1 + is_worker:  # one of them stays
            server.history.fault(f"kill -9 {victim}")
            with contextlib.suppress(psutil.NoSuchProcess):
                dice.choice(children).kill()
            deaths[victim] += 1
            died_at[victim] = time.monotonic()
            for each in alive:
                each.num_deaths += is_worker


def told(events: list[Event]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def test_no_answer_has_a_gap_or_another_text(server: Server, asker: Asker) -> None:
    dice, deaths = random.Random(SEED), Counter[str]()
    room, alive = asyncio.Semaphore(AT_ONCE), set[Followed]()

    async def one(number: int) -> Followed:
        async with room:
            followed = Followed(dice.randrange(1000))
            alive.add(followed)
            followed.id = await asker.ask(followed.asked, f"{SEED}-{number}")
            await asker.follow(followed)
            alive.remove(followed)
            return followed

    killing = asyncio.create_task(kill(server, dice, deaths, alive))
    try:
        found = await asyncio.gather(*(one(number) for number in range(NUM_RESPONSES)))
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    problems = Counter[str]()
    for followed in found:
        numbers = [event["sequence_number"] for event in followed.events]
        problems["gaps"] += numbers != list(range(len(numbers)))
        if (text := told(followed.events)) != oracle_answer(followed.asked, NUM_TOKENS):
            problems["other texts"] += 1
            print(f"{followed.id} of {followed.asked}: {text!r}", followed.events[-1])
        problems["other events"] += await asker.whole(followed.id) != followed.events
        problems["not kept"] += (
            await asker.until_answered("GET", f"/v1/responses/{followed.id}")
            != followed.events[-1]["response"]
        )
    num_breaks = sum(followed.num_breaks for followed in found)
    print(f"{len(found)} responses, {dict(deaths)} killed, {num_breaks} streams broken")
    assert +problems == Counter()
    assert len({followed.id for followed in found}) == NUM_RESPONSES and deaths.total()


async def test_no_stop_is_lost_in_any_mode(server: Server, asker: Asker) -> None:
    dice = random.Random(SEED)
    room = asyncio.Semaphore(AT_ONCE)
    ends = Counter[str]()
    await asyncio.to_thread(wait_for, server.is_ready, PATIENCE)  # after any kill

    async def one(number: int) -> None:
        mode = MODES[number % len(MODES)]
        body = {"input": oracle_word(1), "max_output_tokens": 4000, "temperature": 0}
        body |= {"background": mode == "background", "store": "unstored" not in mode}
        body |= {"stream": "stream" in mode}
        async with room:
            if mode == "unstored":
                with contextlib.suppress(httpx2.TimeoutException):
                    seconds = dice.uniform(0.05, 0.5)
                    await asker.http.post("/v1/responses", json=body, timeout=seconds)
                return
            if mode == "background":
                response = await asker.until_answered("POST", "/v1/responses", json=body)
                await asyncio.sleep(dice.uniform(0, 0.3))
                ends[await stop(response["id"])] += 1
                return
            async with asker.http.stream("POST", "/v1/responses", json=body) as answer:
                lines = answer.aiter_lines()
                most = dice.randrange(1, 30)
                seen = [json.loads(line[6:]) async for line in taken(lines, most)]
                if mode == "stream":
                    ends[await stop(seen[0]["response"]["id"])] += 1

    async def taken(lines: AsyncIterator[str], most: int) -> AsyncIterator[str]:
        async for line in lines:
            if line.startswith("data: "):
                yield line
                most -= 1
                if not most:
                    return

    async def stop(response_id: str) -> str:
        path = f"/v1/responses/{response_id}/cancel"
        return str((await asker.until_answered("POST", path))["status"])

    await asyncio.gather(*(one(number) for number in range(NUM_STOPS)))
    assert set(ends) == {"cancelled"} and ends.total() == NUM_STOPS // len(MODES) * 2
    deadline = time.monotonic() + PATIENCE
    while (counts := server._engine_counts()) is None or counts.running or counts.waiting:
        assert time.monotonic() < deadline, counts
        await asyncio.sleep(0.1)
    assert counts.blocks_free == counts.blocks_free_at_rest
