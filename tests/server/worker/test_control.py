"""`Control`: what a worker does when other workers, or its supervisor, tell it to."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.oracle.history import History
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine


@pytest.fixture
async def worker(redis_server: EmbeddedRedis) -> AsyncIterator[Worker]:
    url, prefix = redis_server.url, fresh_prefix()
    engine = ScriptedEngine(Dice(0))
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        yield worker


async def held_answer(worker: Worker, client: LocalClient) -> str:
    """An answer that its engine holds in the middle."""
    engine: Any = worker.models.default_engine
    response = await client.ask(await client.new_session(), oracle_word(1))
    engine.requests[response].is_held.add("mid")
    await engine.requests[response].reached["mid"].wait()
    return response


async def end_of(client: LocalClient, response: str) -> dict[str, Any]:
    """The response as it ended."""
    done = (await client.done(response)).done
    assert done is not None
    ended: dict[str, Any] = done["response"]
    return ended


async def test_a_command_over_redis_reaches_the_worker_that_it_names(worker: Worker) -> None:
    command = {"type": "drain"}
    # It listens soon after its start, and only the number of receivers says so.
    while not await worker.store.publish_control(worker.config.replica, command):  # noqa: ASYNC110
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await worker.stop_asked.wait()


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"type": "of_a_later_version"},
        {"type": "cancel"},
        {"type": "cancel", "response_id": 5},
        {"type": "promote", "response_id": "resp_" + "A" * 33},
    ],
)
async def test_a_command_that_it_does_not_know_changes_nothing(
    worker: Worker, command: dict[str, Any]
) -> None:
    await worker.control.obey(command)
    assert not worker.stop_asked.is_set()


async def test_a_stop_that_another_worker_stored_ends_the_answer_here(worker: Worker) -> None:
    async with LocalClient(worker, History(lambda: None)) as client:
        response = await held_answer(worker, client)
        await worker.store.runs.request_cancel(None, response, by="admin", reason="admin_cancelled")
        await worker.control.obey({"type": "cancel", "response_id": response})
        done = await end_of(client, response)
    assert done["status_details"] == {"reason": "admin_cancelled", "by": "admin"}


async def test_answers_of_a_session_that_another_worker_deletes_end_here(worker: Worker) -> None:
    async with LocalClient(worker, History(lambda: None)) as client:
        response = await held_answer(worker, client)
        run = worker.runs.local(response)
        assert run is not None
        assert response in worker.runs.leases()
        await worker.control.obey({"type": "deleted", "session_id": run.session_id})
        assert worker.runs.leases() == {}  # or it would be back in the index of live runs
        done = await end_of(client, response)
    assert done["status_details"]["reason"] == "session_deleted"


async def test_the_redis_of_the_supervisor_counts_as_away_once_it_has_died(worker: Worker) -> None:
    await worker.control.obey({"type": "store_exited"})
    assert worker.health.degraded["store"] == "unavailable"


async def test_a_supervisor_without_another_engine_core_ends_the_engine(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    engine = worker.models.default_engine
    monkeypatch.setattr(engine, "shutdown", lambda: ended.append(True), raising=False)
    await worker.control.obey({"type": "engine_gone"})
    assert ended == [True]
