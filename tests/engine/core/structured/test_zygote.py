"""What the forking process says of grammars: how each has ended, and what may be asked again."""

import os
import signal
from collections.abc import Iterator

import pytest

from engine import demo_model
from engine.core.structured import zygote
from engine.core.structured.frames import Setup, Source
from engine.core.structured.processes import Processes, Unusable

NUM_BYTES = 4096
GOOD = Source("regex", "[ab]+")


@pytest.fixture
def masks_fd() -> Iterator[int]:
    fd = os.memfd_create("masks", os.MFD_CLOEXEC)
    os.ftruncate(fd, NUM_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def processes(masks_fd: int) -> Iterator[Processes]:
    file = str(demo_model() / "tokenizer.json")
    processes = Processes(Setup(file, 2560, [0], 4), masks_fd)
    yield processes
    processes.close()


def test_each_grammar_is_judged_by_itself(processes: Processes) -> None:
    assert processes.prove(GOOD).problem == ""
    slow = Source("json", '{"type": "integer", "multipleOf": 10000019}')
    assert "too long" in processes.prove(slow).problem
    assert "regex" in processes.prove(Source("regex", "(")).problem
    assert processes.prove(GOOD).problem == ""


def test_it_is_started_again_when_it_has_died(processes: Processes) -> None:
    processes.prove(GOOD)
    first = processes.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert processes._process is not None
    processes._process.wait()
    assert processes.prove(GOOD).problem == ""
    assert processes.pid != first


def test_a_tokenizer_that_knows_more_than_the_model_cannot_be_used(masks_fd: int) -> None:
    file = str(demo_model() / "tokenizer.json")
    processes = Processes(Setup(file, 100, [0], 1), masks_fd)
    with pytest.raises(Unusable):
        processes.prove(GOOD)
    processes.close()


@pytest.mark.parametrize(
    ("number", "problem"),
    [(signal.SIGPROF, "too long"), (signal.SIGABRT, "memory"), (signal.SIGSEGV, "crashes")],
)
def test_a_death_has_a_reason(number: signal.Signals, problem: str) -> None:
    assert problem in zygote._why_it_ended(number.value)
