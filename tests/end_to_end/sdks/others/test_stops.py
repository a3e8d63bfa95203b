"""A thousand answers that OpenAI's client stops, in every way that it has: not one goes on.

`PARLEY_STOP_SEED=N` stops at the same moments again.
"""

import json
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import OPENAI_PYTHON, clean_environment, python_with
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time

STOPS = Path(__file__).with_name("stops.py")
PACE = 10  # tokens/s: a step of an answer is longer than the way of a stop
STEPS = 1  # on average, of an answer after its last token that was seen
# After the last stop nothing runs: a call that is not streamed is waited for, in case that its
# client repeats it; the rest of the time is for a busy machine.
ENDED_SECONDS = 10.0 + 10.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def paced(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """No answer ends by itself while the test lasts."""
    data = tmp_path_factory.mktemp("stops") / "data"
    server = Server(data, oracle_model, PARLEY_PACE=f"{PACE}", PARLEY_MAX_ANSWER_SECONDS="0")
    server.history.engines.clear()  # which count requests of which nothing is stored
    try:
        yield server.start()
    finally:
        server.close()


def figures(server: Server) -> Counter[str]:
    """Of the engine."""
    _, body = server.get("/metrics")
    found = re.findall(r"^parley_(\w+) (\d+)\.0$", body.decode(), re.MULTILINE)
    return Counter({name: int(value) for name, value in found})


def stop_all(server: Server, kind: str, count: int) -> tuple[Counter[str], str]:
    """How the figures have grown when nothing runs any more; and what happened, in words.

    `seen` are the tokens that the client was sent before it stopped.
    """
    seed = int(os.environ.get("PARLEY_STOP_SEED", random.randrange(10**6)))
    before = figures(server)
    command = [str(python_with(OPENAI_PYTHON)), str(STOPS), f"{server.url}/v1", server.token]
    done = subprocess.run(
        [*command, kind, f"{count}", f"{seed}"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    told = json.loads(done.stdout.splitlines()[-1])
    assert sum(told["stops"].values()) == count

    began = running_time()
    while (after := figures(server))["requests_running"] + after["requests_waiting"]:
        assert running_time() - began < ENDED_SECONDS, (seed, after)
        time.sleep(0.05)  # figures are asked for: there is no event to wait for
    assert after["kv_blocks_free"] == before["kv_blocks_free"], seed
    after.subtract(before)
    after["seen"] = sum(told["seen"].values())
    words = ("engine_requests_total", "aborts_total", "generation_tokens_total", "seen")
    what = f"seed {seed}: {told['stops']}, { ({word: after[word] for word in words}) }"
    print(f"\n{what}")
    return after, what


def test_no_stream_that_is_closed_goes_on(paced: Server) -> None:
    grown, what = stop_all(paced, "streams", 500)
    assert grown["aborts_total"] == grown["engine_requests_total"] >= 500, what
    # One step may run while the stop is on its way, and what that step says was seen by nobody.
    unseen = grown["generation_tokens_total"] - grown["seen"]
    assert unseen <= STEPS * grown["engine_requests_total"], what


def test_no_call_that_is_given_up_goes_on(paced: Server) -> None:
    grown, what = stop_all(paced, "calls", 200)
    assert grown["aborts_total"] == grown["engine_requests_total"] >= 100, what


def test_no_response_that_is_stopped_goes_on(paced: Server) -> None:
    grown, what = stop_all(paced, "responses", 250)
    assert grown["aborts_total"] == grown["engine_requests_total"] >= 100, what


def test_vectors_that_nobody_waits_for_are_not_made(paced: Server) -> None:
    grown, what = stop_all(paced, "vectors", 50)
    assert grown["engine_requests_total"] < 50 * 64, what
