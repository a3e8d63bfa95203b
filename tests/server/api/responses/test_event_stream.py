"""A stored answer as a stream: which way its events go, and that they are the same on each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from server.access.identities import User
from server.protocol.errors import ApiError
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine

LENGTH = 200


class House:
    """A worker, and the engine, which goes on when the test says so."""

    def __init__(self, worker: Worker, engine: ScriptedEngine) -> None:
        self.worker, self.engine = worker, engine

    async def begun(self) -> Http:
        """A stream in the middle of which its engine waits."""
        body = {"model": "oracle", "input": oracle_word(1), "max_output_tokens": LENGTH}
        http = Http(self.worker, "POST", "/v1/responses", body={**body, "stream": True})
        async with asyncio.timeout(PATIENCE):
            await self.engine.was_asked.wait()
            self.request.is_held.add("mid")
            await self.request.reached["mid"].wait()
            await http.num_frames(6)
        return http

    @property
    def request(self) -> Any:
        (request,) = self.engine.requests.values()
        return request

    async def ended(self, http: Http) -> list[dict[str, Any]]:
        """The frames of a stream, when the engine has gone on and it has ended."""
        self.request.is_held.clear()
        self.request.released.set()
        await asyncio.wait_for(http.answered, PATIENCE)
        return http.frames

    def follow(self, response_id: str, after: int) -> Http:
        query = f"stream=true&starting_after={after}"
        return Http(self.worker, "GET", f"/v1/responses/{response_id}", query)


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    dice = Dice(7)
    engine = ScriptedEngine(dice)
    async with running_workers(redis_server.url, fresh_prefix(), engine, dice, 1) as workers:
        yield House(workers[0], engine)


def numbers_of(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["sequence_number"] for frame in frames]


def text_of(frames: list[dict[str, Any]]) -> str:
    return "".join(f["delta"] for f in frames if f["type"] == "response.output_text.delta")


async def test_a_socket_that_is_full_for_a_while_gets_every_event_once_and_in_order(
    house: House,
) -> None:
    http = await house.begun()
    num_straight, http.is_jammed = http.num_straight, True
    async with asyncio.timeout(PATIENCE):
        house.request.is_held.clear()
        house.request.released.set()
        await http.num_frames(len(http.frames) + 3)
        http.is_jammed = False
        await http.answered
    assert 0 < num_straight < http.num_straight
    assert numbers_of(http.frames) == list(range(len(http.frames)))
    assert text_of(http.frames) == oracle_answer(1, LENGTH)


async def test_who_comes_again_amid_an_answer_gets_the_rest_while_it_is_written(
    house: House,
) -> None:
    first = await house.begun()
    response_id = first.frames[0]["response"]["id"]
    again = house.follow(response_id, after=5)
    whole = await house.ended(first)
    await asyncio.wait_for(again.answered, PATIENCE)
    assert again.num_straight and again.frames == whole[6:]


async def test_a_stream_ends_with_the_rights_of_who_reads_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[ApiError], None]] = []

    @contextlib.contextmanager
    def holding(user: User, end: Callable[[ApiError], None]) -> Iterator[None]:
        ends.append(end)
        yield

    monkeypatch.setattr(house.worker.services.identities, "holding", holding)
    http = await house.begun()
    seen = len(http.frames)
    (end,) = ends
    end(ApiError("token_invalid", "revoked"))
    frames = await house.ended(http)
    assert (len(frames), frames[-1]["code"]) == (seen + 1, "token_invalid")
    assert numbers_of(frames) == list(range(seen + 1))
