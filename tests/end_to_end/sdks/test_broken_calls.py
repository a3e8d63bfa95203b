"""What OpenAI's client repeats by itself, after its connections broke, is generated once."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import OPENAI_PYTHON, SCRIPTS, python_with, run_calls
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer

COUNT = 100
CALLS = SCRIPTS / "broken_calls.py"


@pytest.mark.slow
def test_a_hundred_calls_that_break_before_their_first_byte_are_a_hundred_generations(
    oracle_model: Path, tmp_path: Path
) -> None:
    server = Server(
        tmp_path / "data",
        oracle_model,
        PARLEY_WORKERS="2",
        PARLEY_PACE="100",  # so that none has ended when all have begun
        PARLEY_MAX_ACTIVE_RESPONSES_PER_USER="0",
    )
    server.history.engines.clear()  # which count requests of which nothing is stored
    command = [str(python_with(OPENAI_PYTHON)), str(CALLS), str(COUNT)]
    try:
        server.start()
        address = server.url.removeprefix("http://")
        with FaultProxy(address) as proxy, ThreadPoolExecutor() as pool:
            calling = pool.submit(run_calls, command, f"http://{proxy.address}", server.token)
            await_requests(server, COUNT)
            proxy.command("rst")
            answers = calling.result(PATIENCE)
            assert proxy.num_accepted >= 2 * COUNT
        assert answers == {str(n): oracle_answer(n, 400) for n in range(1, COUNT + 1)}
        assert server.metric("parley_engine_requests_total") == COUNT
    finally:
        server.close()


def await_requests(server: Server, count: int) -> None:
    """Return when the engine has been asked so often. It is seen from outside: no event tells."""
    deadline = time.monotonic() + PATIENCE
    while server.metric("parley_engine_requests_total") < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # the server counts its requests without an event to wait for
