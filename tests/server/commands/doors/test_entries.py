"""`StoredEntries`: every entry once and in order, wherever the answer is written."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import cycle

import pytest

from server.commands.doors.entries import StoredEntries
from server.commands.doors.straight import Straight
from server.live.response_log import is_done
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import ResponseNotFound
from sessions.model.events import Event, ObjectEvent
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.answering import until
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine


class House:
    """Two workers; the first one writes an answer."""

    def __init__(self, workers: list[Worker], engine: ScriptedEngine) -> None:
        self.workers, self.engine = workers, engine

    async def begin(self, num_tokens: int = 30) -> str:
        store = self.workers[0].store
        session = (await store.sessions.create("local", idempotency_key="k")).session
        body = {"input": oracle_word(1), "settings": {"max_output_tokens": num_tokens}}
        path = f"/v1/sessions/{session.id}/responses"
        more = {"idempotency-key": "k"}
        answer = await Http(self.workers[0], "POST", path, body=body, headers=more).body()
        return str(answer["id"])

    def reading(
        self,
        response_id: str,
        worker: int,
        uid: str = "local",
        straight: Straight[Event] | None = None,
    ) -> StoredEntries:
        return StoredEntries(self.workers[worker].services, uid, response_id, straight)


@pytest.fixture
async def house(redis_server: EmbeddedRedis) -> AsyncIterator[House]:
    dice = Dice(5)
    engine = ScriptedEngine(dice)
    async with running_workers(redis_server.url, fresh_prefix(), engine, dice, 2) as workers:
        yield House(workers, engine)


async def read(entries: StoredEntries, found: list[Event] | None = None) -> list[Event]:
    found = [] if found is None else found
    async with asyncio.timeout(PATIENCE):
        async for batch in entries.batches():
            found += batch
    await entries.close()
    return found


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.delta for event in events if not isinstance(event, ObjectEvent))


@pytest.mark.parametrize("worker", [0, 1])
async def test_an_answer_is_read_while_it_is_written(house: House, worker: int) -> None:
    response_id = await house.begin()
    entries = await read(house.reading(response_id, worker))
    stored = await house.workers[0].store.runs.events(response_id)
    assert entries == [event for _, event in stored]
    assert text_of(entries) == oracle_answer(1, 30)


@pytest.mark.parametrize("worker", [0, 1])
async def test_an_answer_that_is_over_is_read_whole(house: House, worker: int) -> None:
    response_id = await house.begin()
    first = await read(house.reading(response_id, 1 - worker))
    assert await read(house.reading(response_id, worker)) == first


async def test_what_the_store_does_not_have_is_not_read(house: House) -> None:
    response_id = await house.begin(200)
    run = house.workers[0].services.runs.local(response_id)
    assert run is not None
    entries = house.reading(response_id, 0)
    num_read = 0
    async with asyncio.timeout(PATIENCE):
        async for batch in entries.batches():
            num_read += len(batch)
            assert num_read <= run.num_stored or run.settled.is_set()
    await entries.close()


async def test_what_is_new_goes_straight_to_a_reader_that_takes_it_but_for_the_end(
    house: House,
) -> None:
    response_id = await house.begin(200)
    found: list[Event] = []
    straight: list[Event] = []

    def put(events: Sequence[Event]) -> None:
        found.extend(events)
        straight.extend(events)

    await read(house.reading(response_id, 0, straight=Straight(lambda: True, put)), found)
    stored = await house.workers[0].store.runs.events(response_id)
    assert found == [event for _, event in stored]
    assert straight and not is_done(straight[-1])


async def test_a_reader_that_takes_nothing_now_and_then_gets_every_entry_once_and_in_order(
    house: House,
) -> None:
    response_id = await house.begin(200)
    found: list[Event] = []
    is_open = cycle([True, False])
    straight = Straight(lambda: next(is_open), found.extend)
    await read(house.reading(response_id, 0, straight=straight), found)
    stored = await house.workers[0].store.runs.events(response_id)
    assert found == [event for _, event in stored]


async def test_of_an_answer_elsewhere_nothing_goes_straight(house: House) -> None:
    response_id = await house.begin()
    straight: list[Event] = []
    way = Straight(lambda: True, straight.extend)
    assert text_of(await read(house.reading(response_id, 1, straight=way))) == oracle_answer(1, 30)
    assert not straight


async def test_what_is_wrong_with_one_reader_is_no_other_ones(house: House) -> None:
    response_id = await house.begin(200)

    def fail(events: Sequence[Event]) -> None:
        raise ZeroDivisionError

    other = asyncio.create_task(read(house.reading(response_id, 0)))
    with pytest.raises(ZeroDivisionError):
        await read(house.reading(response_id, 0, straight=Straight(lambda: True, fail)))
    assert text_of(await other) == oracle_answer(1, 200)


@pytest.mark.parametrize("worker", [0, 1])
async def test_of_a_log_that_is_gone_there_is_no_end(house: House, worker: int) -> None:
    response_id = await house.begin()
    await read(house.reading(response_id, 1))
    store, runs = house.workers[0].store, house.workers[0].services.runs
    await until(lambda: runs.local(response_id) is None)  # its memory is no log
    await store.client.call("DEL", store.keys.events(f"ses_{response_id[5:27]}", response_id))
    assert await read(house.reading(response_id, worker)) == []


async def test_an_answer_of_somebody_else_is_not_found(house: House) -> None:
    response_id = await house.begin()
    for worker in (0, 1):
        with pytest.raises(ResponseNotFound):
            await read(house.reading(response_id, worker, "bob"))


async def test_who_has_read_listens_no_more(house: House) -> None:
    response_id = await house.begin()
    await read(house.reading(response_id, 1))
    assert dict(house.workers[1].services.hub.rooms) == {}
