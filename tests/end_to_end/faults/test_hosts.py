"""Two `parley serve` that share nothing but a Redis: what happens to one of them."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.config.intervals import SHORTENED
from tests.end_to_end.site.deaths import everything_is_killed
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.end_to_end.site.owned_answer import NUM_TOKENS, SETTINGS, TEXT, begin, resume, run_of
from tests.helpers.redis_server import redis_binaries, running_redis
from tests.helpers.tiny_model import oracle_answer, oracle_word

LEASE_SECONDS = SHORTENED.lease


@contextmanager
def two_hosts(model: Path, folder: Path, **environment: str) -> Iterator[tuple[Server, Server]]:
    """Two `parley serve` that share nothing but a Redis."""
    with running_redis(next(iter(redis_binaries().values()))) as redis:
        environment |= {"PARLEY_PACE": "100", "PARLEY_REDIS_URL": redis.url}
        first = Server(folder / "a", model, None, **environment)
        second = Server(folder / "b", model, first.history, **environment)
        try:
            with ThreadPoolExecutor() as threads:
                started = list(threads.map(Server.start, (first, second)))
            yield started[0], started[1]
        finally:
            first.close()
            second.close()


@pytest.fixture(scope="module")
def _hosts(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    with two_hosts(oracle_model, tmp_path_factory.mktemp("hosts"), **TESTING) as servers:
        yield servers


@pytest.fixture
def hosts(_hosts: tuple[Server, Server]) -> tuple[Server, Server]:
    """Both serve, even where a test has ended one."""
    for server in _hosts:
        if not server.is_alive:
            server.start()
    return _hosts


async def one_host_dies(first: Server, second: Server, seconds: float) -> None:
    """Its answer goes on at the other host, within so long after the kill."""
    assert first.process is not None
    async with Client(first) as owner, Client(second) as other:
        session, response = await begin(owner, other)
        first.history.fault("kill -9 of all of one host")
        killed = time.monotonic()
        await everything_is_killed(first)
        await owner.closed()
        async with Client(second) as back:  # before anybody has taken the answer over
            resuming = asyncio.create_task(resume(back, session, response, owner.answers[response]))
            queued = await other.next("response.queued")
            assert queued["reason"] == "takeover"
            await other.next(TEXT)
            pause = time.monotonic() - killed
            print(f"next delta after {pause:.2f} s")
            assert pause < seconds
            assert (await resuming).final == oracle_answer(0, NUM_TOKENS)
        assert (await other.done(response)).final == oracle_answer(0, NUM_TOKENS)
        assert (await run_of(second, response))["fence"] == "2"
    first.process.wait()


@pytest.mark.row("S1", "S2")
async def test_another_host_goes_on_when_the_lease_has_ended(
    hosts: tuple[Server, Server],
) -> None:
    first, second = hosts
    await one_host_dies(first, second, LEASE_SECONDS + 2.0)


@pytest.mark.row("S1", "S2")
@pytest.mark.slow
async def test_another_host_goes_on_within_twelve_seconds(
    oracle_model: Path, tmp_path: Path
) -> None:
    with two_hosts(oracle_model, tmp_path) as (first, second):
        await one_host_dies(first, second, 12.0)


@pytest.mark.slow
@pytest.mark.row("E10")
async def test_core_of_one_host_dies_and_the_other_never_notices(
    hosts: tuple[Server, Server],
) -> None:
    first, second = hosts
    async with Client(first) as here, Client(second) as there:
        sessions = [await client.new_session() for client in (here, there)]
        mine = await here.ask(sessions[0], oracle_word(0), settings=SETTINGS)
        theirs = await there.ask(sessions[1], oracle_word(300), settings=SETTINGS)
        await here.deltas(mine, 5)
        await there.deltas(theirs, 5)
        first.kill_child("engine.core")
        assert (await here.next("connection.degraded"))["engine"] == "unavailable"
        assert (await there.done(theirs)).final == oracle_answer(300, NUM_TOKENS)
        assert not [f for f in there.frames if f["type"] == "connection.degraded"]
        answer = await here.done(mine)
        assert answer.final == oracle_answer(0, NUM_TOKENS)
        assert answer.fence == 1
