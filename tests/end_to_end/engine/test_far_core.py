"""A server whose engine is a core on another machine: `parley core`, and a net in between."""

import asyncio
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.engine.test_engine_group import SEEDED, Watched, are_ready
from tests.end_to_end.site.core_machine import CoreMachine
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.engine.helpers.far.machines import Net
from tests.helpers.redis_topology import wait_for
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_word

PACED = {"PARLEY_PACE": "100", "PARLEY_WATCHDOG_SECONDS": "10"}
SILENT_SECONDS = 10.0  # as docs/engines.md has it
PING_SECONDS = 1.0


@pytest.fixture(scope="module")
def machine(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreMachine]:
    machine = CoreMachine(tmp_path_factory.mktemp("machine"), oracle_model, **PACED)
    try:
        yield machine.start()
    finally:
        machine.close()


@pytest.fixture(scope="module")
def server(
    machine: CoreMachine, oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    settings = TESTING | {"PARLEY_ENGINES": machine.engine(), "PARLEY_WORKERS": "2"}
    server = Server(tmp_path_factory.mktemp("far") / "data", oracle_model, None, **settings)
    try:
        yield server.start()
    finally:
        server.close()


async def test_answers_go_on_exactly_when_the_far_core_is_killed_and_back(
    server: Server, machine: CoreMachine
) -> None:
    async with Client(server) as client:
        watched = Watched(client)
        await watched.ask()
        server.history.fault("kill -9 engine.core")
        machine.core.kill()
        answers = await watched.done()
        assert set(watched.restarts) == {1}
        assert {
            each.done["response"].get("exactness", "exact") for each in answers if each.done
        } == {"exact"}


async def test_a_stop_is_confirmed_from_afar(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=SEEDED)
        await client.deltas(response, 3)
        await client.send("stop", response_id=response)
        answer = await client.done(response)
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        assert answer.done["engine"] == "released"


def test_a_key_that_is_not_trusted_ends_the_start_with_2_and_one_line(
    machine: CoreMachine, oracle_model: Path, tmp_path: Path
) -> None:
    keys = machine.keys.stranger(tmp_path / "stranger")
    engines = f"native={machine.address};keys={keys}"
    server = Server(tmp_path / "data", oracle_model, None, **TESTING, PARLEY_ENGINES=engines)
    server.begin_start()
    try:
        assert server.process is not None and server.process.wait(60) == 2
        assert f"{machine.address} does not trust our key" in server.log()
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_far_core_that_dies_again_and_again_or_hangs_changes_no_character(
    number: int, server: Server, machine: CoreMachine
) -> None:
    # After more in a row than these, the pause before the next start is longer than answers wait.
    for _ in range(4 if number == signal.SIGKILL else 1):
        await asyncio.to_thread(wait_for, server.is_ready, 60.0)
        async with Client(server) as client:
            watched = Watched(client)
            await watched.ask()
            server.history.fault("kill -9 engine.core")
            machine.core.send_signal(number)
            await watched.done()
            assert set(watched.restarts) == {1}


@pytest.mark.slow
async def test_a_net_that_swallows_everything_costs_so_many_seconds_and_no_character(
    machine: CoreMachine, oracle_model: Path, tmp_path: Path
) -> None:
    net = Net(machine.address)
    async with net.running():
        engines = f"{machine.engine(net.address, ';name=far')} native;name=near"
        settings = PACED | TESTING | {"PARLEY_ENGINES": engines}
        server = Server(tmp_path / "data", oracle_model, None, **settings)
        try:
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait_for, partial(are_ready, server), 60.0)
            async with Client(server) as client:
                watched = Watched(client)
                await watched.ask()
                server.history.fault("kill -9 engine.core")
                net.block()
                started = running_time()
                await watched.done()
                assert 0 < sum(watched.restarts) < len(watched.restarts)
                limit = SILENT_SECONDS + 2 * PING_SECONDS + 5.0  # which the rest of it takes
                assert running_time() - started < limit
                assert watched.gap < SILENT_SECONDS + 2 * PING_SECONDS + 1.0
            net.unblock()
            await asyncio.to_thread(wait_for, partial(are_ready, server), 60.0)
        finally:
            await asyncio.to_thread(server.close)
