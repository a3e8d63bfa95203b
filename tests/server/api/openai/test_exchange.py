"""A call that is made again at OpenAI's routes, at one worker and at two."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import PATIENT, running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": oracle_word(1)}],
        "max_tokens": 4,
    },
    "/v1/completions": {"prompt": oracle_word(1), "max_tokens": 4},
    "/v1/responses": {"input": oracle_word(1), "store": False, "max_output_tokens": 4},
}


def held() -> Request:
    request = Request()
    request.is_held.add("prefill")
    return request


class House:
    """Two workers, their engine, and who asks there."""

    def __init__(self, workers: list[Worker], engine: ScriptedEngine, route: str) -> None:
        self.workers, self.engine, self._route = workers, engine, route

    def ask(
        self, worker: int = 0, *, number: int | None = None, key: str | None = None, **more: Any
    ) -> Http:
        body = {"model": "oracle", **BODIES[self._route], **more}
        headers = {} if number is None else {"x-stainless-retry-count": f"{number}"}
        if key is not None:
            headers["idempotency-key"] = key
        return Http(self.workers[worker], "POST", self._route, body=body, headers=headers)

    async def break_off(self, http: Http, count: int = 1) -> None:
        """The client leaves before its answer has begun, and its worker knows."""
        self.engine.requests.default_factory = held  # it has not been asked yet
        async with asyncio.timeout(PATIENCE):
            while self.engine.num_requests < count:
                self.engine.was_asked.clear()
                await self.engine.was_asked.wait()
            self.engine.requests.default_factory = Request
            http.leave()
            await http.answered
            for worker in self.workers:
                await worker.services.stateless.repeats._background.wait(PATIENCE)

    def release(self) -> None:
        for request in self.engine.requests.values():
            request.released.set()


@pytest.fixture(params=BODIES)
async def house(
    redis_server: EmbeddedRedis, request: pytest.FixtureRequest
) -> AsyncIterator[House]:
    dice = Dice(12)
    engine = ScriptedEngine(dice)
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, dice, 2, PATIENT) as workers:
        yield House(workers, engine, request.param)


def text_of(answer: Any) -> str:
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def streamed_text(http: Http) -> str:
    """Of an answer that has ended as it should."""
    last = http.frames[-1]
    if "response" in last:
        assert [frame["sequence_number"] for frame in http.frames] == [*range(len(http.frames))]
        return text_of(last["response"])
    assert http.is_done
    deltas = [frame["choices"][0] for frame in http.frames]
    return "".join(d["text"] if "text" in d else d["delta"].get("content", "") for d in deltas)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("worker", [0, 1])
async def test_a_retry_gets_the_answer_that_its_first_try_has_begun(
    house: House, worker: int, stream: bool
) -> None:
    await house.break_off(house.ask(number=0, stream=stream))
    retry = house.ask(worker, number=1, stream=stream)
    house.release()
    if stream:
        await asyncio.wait_for(retry.answered, PATIENCE)
        assert streamed_text(retry) == oracle_answer(1, 4)
    else:
        assert text_of(await retry.body()) == oracle_answer(1, 4)
    assert house.engine.num_requests == 1
    assert [w.services.stateless.entry.slots() for w in house.workers] == [[], []]


async def test_a_call_that_counts_no_tries_ends_with_its_client(house: House) -> None:
    await house.break_off(house.ask())
    (request,) = house.engine.requests.values()
    assert request.aborted.is_set()
    assert text_of(await house.ask(number=1).body()) == oracle_answer(1, 4)
    assert house.engine.num_requests == 2


async def test_a_key_gives_one_answer_at_all_workers_and_refuses_another_body(
    house: House,
) -> None:
    answers = [await house.ask(worker, key="k").body() for worker in (0, 1, 0)]
    assert answers[0] == answers[1] == answers[2] and house.engine.num_requests == 1
    for worker in (0, 1):
        refused = house.ask(worker, key="k", temperature=0.5)
        assert (await refused.body())["error"]["code"] == "idempotency_key_reused"
        assert refused.status == 409 and refused.headers[b"x-should-retry"] == b"false"
    odd = house.ask(key="no key")
    assert (await odd.body())["error"]["param"] == "Idempotency-Key" and odd.status == 400


async def test_a_worker_that_leaves_ends_what_waits_for_a_retry(house: House) -> None:
    await house.break_off(house.ask(number=0))
    hurry = asyncio.Event()
    hurry.set()
    await house.workers[0].drain(PATIENCE, hurry, is_crash=False)
    (request,) = house.engine.requests.values()
    async with asyncio.timeout(PATIENCE):
        await request.aborted.wait()
    assert text_of(await house.ask(1, number=1).body()) == oracle_answer(1, 4)
