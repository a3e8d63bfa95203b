"""A process of the server that is to end does end at any moment, and leaves nothing."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.end_to_end.site import planted_hangs
from tests.end_to_end.site.deaths import is_running
from tests.end_to_end.site.harness import TESTING, Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_answer, oracle_word

NewServer = Callable[..., Server]
HUNG = "planted: hangs"
IMPATIENT = {"GRACE_SECONDS": 1.0, "HELD_SECONDS": 2.0}


async def hang_over(server: Server, word: str) -> None:
    """Ask a question that something hangs over, and leave when it does."""
    async with Client(server) as client:
        session = await client.new_session()
        key = {"session_id": session, "idempotency_key": "hangs"}
        await client.send("response.create", input=word, **key)
        await asyncio.to_thread(wait_for, lambda: HUNG in server.log())
        client.cut()


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(planted_hangs.THREAD_WORD, marks=pytest.mark.slow),
        pytest.param(planted_hangs.BOTH_WORD, marks=pytest.mark.slow),
        planted_hangs.HELD_WORD,
    ],
    ids=["tokenizer", "event-loop-and-a-thread", "interpreter"],
)
async def test_a_worker_that_hangs_outlives_no_supervisor(
    new_server: NewServer, tmp_path: Path, word: str
) -> None:
    server = new_server(PYTHONPATH=planted_hangs.plant(tmp_path, IMPATIENT))
    assert server.process is not None
    family = psutil.Process(server.process.pid).children(recursive=True)
    await hang_over(server, word)
    server.process.kill()
    await asyncio.to_thread(wait_for, lambda: not any(map(is_running, family)))
    address = urlsplit(server.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((str(address.hostname), int(address.port or 0)))


@pytest.mark.parametrize("num_signals", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_worker_that_hangs_ends_when_asked_to_and_another_one_serves(
    new_server: NewServer, tmp_path: Path, num_signals: int
) -> None:
    drain = "1" if num_signals == 1 else "600"
    server = new_server(
        PYTHONPATH=planted_hangs.plant(tmp_path, IMPATIENT), PARLEY_DRAIN_SECONDS=drain
    )
    (worker,) = server.children("server.worker")
    await hang_over(server, planted_hangs.BOTH_WORD)
    for _ in range(num_signals):
        worker.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)  # two signals at once may be seen as one
    await asyncio.to_thread(wait_for, lambda: not is_running(worker))
    await asyncio.to_thread(wait_for, lambda: _is_ready(server))
    assert "worker hung and was ended" in server.log()
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 5}
        response = await client.ask(session, oracle_word(0), settings=settings)
        assert (await client.done(response)).final == oracle_answer(0, 5)


def _is_ready(server: Server) -> bool:
    try:
        return server.get("/readyz")[0] == 200
    except OSError:
        return False


@pytest.fixture
def starting(oracle_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Begins starts that hang."""
    servers: list[Server] = []

    def begin(place: str, **constants: float) -> Server:
        path = planted_hangs.plant(tmp_path, constants, place)
        server = Server(tmp_path / "data", oracle_model, None, **TESTING, PYTHONPATH=path)
        servers.append(server)
        server.begin_start()
        return server

    yield begin
    for server in servers:
        server.close()


@pytest.mark.parametrize("place", planted_hangs.START_PLACES)
async def test_a_start_that_hangs_ends_when_asked_to(
    starting: Callable[..., Server], place: str
) -> None:
    server = starting(place, START_GRACE_SECONDS=1.0 if place == "supervisor" else 60.0)
    assert server.process is not None
    await asyncio.to_thread(wait_for, lambda: HUNG in server.log())
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.terminate()
    assert await asyncio.to_thread(server.process.wait, PATIENCE) == 2
    await asyncio.to_thread(wait_for, lambda: not any(map(is_running, family)))
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("place", ["worker", "core"])
async def test_a_start_that_hangs_leaves_nothing_when_the_supervisor_is_killed(
    starting: Callable[..., Server], place: str
) -> None:
    server = starting(place)
    assert server.process is not None
    await asyncio.to_thread(wait_for, lambda: HUNG in server.log())
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    await asyncio.to_thread(wait_for, lambda: not any(map(is_running, family)))


@pytest.mark.slow
async def test_a_worker_that_never_serves_is_reported_in_one_line(
    starting: Callable[..., Server],
) -> None:
    server = starting("worker", READY_SECONDS=1.0)
    assert server.process is not None
    assert await asyncio.to_thread(server.process.wait, PATIENCE) == 2
    assert "a web worker did not start within 1 s" in server.log()
    assert "Traceback" not in server.log()
