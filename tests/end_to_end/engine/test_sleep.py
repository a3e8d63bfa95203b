"""A server whose engine sleeps when nobody asks it anything, with two workers that share it."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.wiring import at_both
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

SLEEP_AFTER_SECONDS = "0.3"


@pytest.fixture(scope="module")
def drowsy(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("drowsy") / "data"
    environment = TESTING | {"PARLEY_WORKERS": "2", "PARLEY_PACE": "50"}
    environment["PARLEY_SLEEP_AFTER_SECONDS"] = SLEEP_AFTER_SECONDS
    server = Server(data, oracle_model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


async def falls_asleep(server: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(server.metric, "parley_engine_sleeping"):
            pass  # each look is a request: a few are enough


async def test_a_question_wakes_the_engine_and_its_client_hears_what_it_waits_for(
    drowsy: Server,
) -> None:
    """A worker that hears of it late hears at once that the engine is awake: then once more."""
    settings = {"temperature": 0, "max_output_tokens": 10}
    async with at_both(drowsy) as clients, asyncio.timeout(PATIENCE):
        for number, client in enumerate(clients):
            session = await client.new_session()
            reasons: set[str] = set()
            while "engine_waking" not in reasons:
                await falls_asleep(drowsy)
                response = await client.ask(session, oracle_word(number), settings=settings)
                assert (await client.done(response)).final == oracle_answer(number, 10)
                queued = [frame for frame in client.frames if frame["type"] == "response.queued"]
                reasons = {it["reason"] for it in queued if it["response_id"] == response}


def has_come(client: Client, response: str, length: int) -> bool:
    return len(client.answers[response].text) >= length


async def test_nobody_sleeps_while_the_answer_of_another_worker_runs(drowsy: Server) -> None:
    """At 50 tokens a second it takes three times as long as an idle engine stays awake."""
    settings = {"temperature": 0, "max_output_tokens": 50}
    async with Client(drowsy) as client:
        response = await client.ask(await client.new_session(), oracle_word(7), settings=settings)
        expected = oracle_answer(7, 50)
        for part in range(1, 9):
            length = part * len(expected) // 10
            await client.wait(partial(has_come, client, response, length), "text")
            is_asleep = await asyncio.to_thread(drowsy.metric, "parley_engine_sleeping")
            assert not is_asleep or len(client.answers[response].text) == len(expected)
        assert (await client.done(response)).final == expected


async def test_a_stop_of_the_answer_that_wakes_the_engine_ends_it_once(drowsy: Server) -> None:
    async with Client(drowsy) as client:
        session = await client.new_session()
        await falls_asleep(drowsy)
        response = await client.ask(session, oracle_word(7), settings={"temperature": 0})
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"


async def test_admins_see_that_it_sleeps_and_looking_wakes_nobody(drowsy: Server) -> None:
    await falls_asleep(drowsy)
    async with Http(drowsy, admin_token(drowsy)) as admin:
        async with asyncio.timeout(PATIENCE):
            while True:
                replicas = (await admin.get("/v1/admin/replicas")).json()["replicas"]
                if [replica.get("engine_sleeping") for replica in replicas] == [1, 1]:
                    break
                await asyncio.sleep(0.05)
        assert {replica["engine"] for replica in replicas} == {"ok"}
    assert await asyncio.to_thread(drowsy.get, "/readyz") == (200, b'{"status":"ok"}')
    assert await asyncio.to_thread(drowsy.metric, "parley_engine_sleeping") == 1
