"""Every workload, with tiny sizes, through the three doors of a real Parley server."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import uvloop

from bench.peers.engines.parley import Parley
from bench.peers.engines.peer import Running, Site
from bench.peers.load.prompts import Prompts
from bench.peers.machine.environments import Environments
from bench.peers.models import Checkpoint
from bench.peers.workloads import (
    FULL,
    QUICK,
    WORKLOADS,
    Turn,
    decode,
    gaps_over,
    gaps_within,
    parts,
    stop,
    warm_up,
)

pytestmark = pytest.mark.slow

ALL = {
    "decode": ["decode@128"],
    "prefill": ["prefill@256"],
    "burst": ["burst@4"],
    "chat": ["chat@2x2", "first of turn 2@2x2"],
    "gap": ["gap beside 256"],
    "stop": ["quiet after a stop", "quiet behind one step"],
    "through": [
        "websocket door@4",
        "events door@4",
        "engine door@4",
        "lost by websocket@4",
        "lost by events@4",
    ],
}


class PacedParley(Parley):
    """So slow that an answer comes in pieces, as those of real models do."""

    more_settings: ClassVar[dict[str, str]] = {"PARLEY_PACE": "100"}


@pytest.fixture(scope="module")
def server(
    checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Prompts]]:
    environments = Environments(tmp_path_factory.mktemp("cache"), jobs=1)
    site = Site(environments, Checkpoint.open("small", checkpoint_folder), threads=1)
    with PacedParley(site, "bf16").running() as running:
        yield running, Prompts(checkpoint_folder, seed=0)


@pytest.fixture
def turn(server: tuple[Running, Prompts]) -> Turn:
    return Turn(*server, QUICK)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_reads_what_it_promises(turn: Turn, name: str) -> None:
    readings = uvloop.run(WORKLOADS[name](turn))
    assert [reading.case for reading in readings] == ALL[name]
    assert all(reading.unit == "%" or reading.value >= 0 for reading in readings)


def test_engines_take_turns_with_one_size_at_a_time() -> None:
    assert [sizes.chats for sizes in parts("burst", FULL)] == [(4,), (8,), (16,), (32,)]
    assert [sizes.contexts for sizes in parts("decode", FULL)] == [((128, 128),), ((2048, 64),)]
    assert parts("chat", FULL) == [FULL]


def test_prompts_and_answers_have_the_lengths_that_were_asked_for(turn: Turn) -> None:
    uvloop.run(warm_up(turn))
    (reading,) = uvloop.run(decode(turn))
    assert reading.details["prompt_tokens"] == 128
    assert reading.details["output_tokens"] == 16
    assert reading.details["cached_tokens"] == 0


@pytest.mark.parametrize("name", ["websocket", "events"])
def test_a_stop_ends_the_answer_at_every_door_of_the_server(
    server: tuple[Running, Prompts], name: str
) -> None:
    running, prompts = server
    one_door = Running(running.pid, {name: running.doors[name]})
    first, _ = uvloop.run(stop(Turn(one_door, prompts, QUICK)))
    assert max(first.details["quiet_ms"]) < 2000


def test_gaps_within_a_time_begin_and_end_in_it() -> None:
    assert gaps_within([1.0, 2.0, 4.0, 8.0], 1.5, 8.0) == [2.0, 4.0]


def test_gaps_over_a_time_count_whole() -> None:
    moments = [1.0, 2.0, 4.0, 8.0]
    assert gaps_over(moments, 3.0, 5.0) == [2.0, 4.0]
    assert gaps_over(moments, 4.5, 5.0) == [4.0]
    assert gaps_over(moments, 9.0, 10.0) == []
