"""The processes of grammars die, or do not answer: the same text, or the end of who did it."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.structured import masks
from engine.core.structured.frames import Source, Try, Verdict
from engine.core.structured.grammars import MAX_LOSSES, REFUSED
from engine.core.structured.processes import Link, Processes
from tests.engine.core.structured.conftest import Walker
from tests.engine.core.structured.test_answers import COMPACT


@pytest.fixture
def mortal(folder: Path) -> Iterator[Walker]:
    walker = Walker(folder)
    yield walker
    walker.engine.close()


def masker_of(walker: Walker) -> int:
    """The process that makes masks: the one child of the one that forks."""
    processes = walker.engine.grammars._processes
    assert processes is not None and processes.pid is not None
    children = Path(f"/proc/{processes.pid}/task/{processes.pid}/children").read_text().split()
    (pid,) = map(int, children)
    return pid


@pytest.mark.parametrize("seed", range(3))
def test_after_the_death_of_a_masker_each_answer_is_the_same(
    walker: Walker, mortal: Walker, seed: int
) -> None:
    expected = [walker.say(COMPACT, seed=n)[0] for n in range(5)]
    rng = random.Random(seed)
    for n in range(5):
        mortal.add(f"r{n}", COMPACT, seed=n)
    mortal.engine.wait_for_grammars()
    deaths = 0
    while mortal.engine.scheduler.sequences:
        if deaths < MAX_LOSSES - 1 and rng.random() < 0.2:
            os.kill(masker_of(mortal), signal.SIGKILL)
            deaths += 1
        mortal.engine.step()
        mortal.engine.wait_for_grammars()
    assert deaths and [mortal.text(f"r{n}") for n in range(5)] == expected


def test_after_the_death_of_all_of_them_there_are_others(mortal: Walker) -> None:
    mortal.add("a", {"regex": "[ab]{8}"})
    mortal.engine.wait_for_grammars()
    mortal.engine.step()
    processes = mortal.engine.grammars._processes
    assert processes is not None and processes.pid is not None
    masker = masker_of(mortal)
    os.kill(processes.pid, signal.SIGKILL)
    os.kill(masker, signal.SIGKILL)
    assert processes._process is not None
    processes._process.wait()
    mortal.engine.run()
    assert mortal.engine.ends["a"].finish_reason == "stop"
    assert mortal.say({"regex": "c"})[0] == "c"


@pytest.mark.parametrize(("num_deaths", "text"), [(1, "c"), (2, "")])
def test_a_grammar_is_proven_again_if_the_process_that_forks_dies(
    mortal: Walker, monkeypatch: pytest.MonkeyPatch, num_deaths: int, text: str
) -> None:
    assert mortal.say({"regex": "a"})[0] == "a"
    prove, deaths = Processes.prove, list[int]()

    def dying(processes: Processes, source: Source) -> Verdict:
        if len(deaths) == num_deaths:
            return prove(processes, source)
        deaths.append(num_deaths)
        processes.close()
        raise EOFError

    monkeypatch.setattr(Processes, "prove", dying)
    said, end = mortal.say({"regex": "c"})
    assert (said, end.error is None) == (text, text == "c")


def test_one_over_which_maskers_die_ends_alone(
    mortal: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_out = Link.try_out

    def deadly(self: Link, request: Try) -> Verdict:
        if request.source.text == "[xy]+":
            os.kill(masker_of(mortal), signal.SIGKILL)
        return try_out(self, request)

    monkeypatch.setattr(Link, "try_out", deadly)
    mortal.add("good", {"regex": "[ab]{9}"})
    mortal.engine.wait_for_grammars()
    mortal.engine.step()
    mortal.add("bad", {"regex": "[xy]+"})
    mortal.engine.run()
    end = mortal.engine.ends["bad"]
    assert end.error is not None and end.error[0] == REFUSED and "ends over it" in end.error[1]
    assert mortal.engine.ends["good"].finish_reason == "stop" and len(mortal.text("good")) == 9


def test_one_under_which_too_many_maskers_die_ends(mortal: Walker) -> None:
    mortal.add("a", {"regex": "[ab]{50}"})
    mortal.engine.wait_for_grammars()
    for _ in range(MAX_LOSSES):
        os.kill(masker_of(mortal), signal.SIGKILL)
        mortal.engine.step()
        mortal.engine.wait_for_grammars()
    error = mortal.engine.ends["a"].error if "a" in mortal.engine.ends else None
    mortal.engine.run()
    error = mortal.engine.ends["a"].error
    assert error is not None and error[0] == REFUSED


def test_the_count_of_losses_begins_anew_with_each_token(mortal: Walker) -> None:
    mortal.add("a", {"regex": "[ab]{300}"}, max_tokens=400)
    mortal.engine.wait_for_grammars()
    for _ in range(2 * MAX_LOSSES):
        os.kill(masker_of(mortal), signal.SIGKILL)
        mortal.engine.step()
        mortal.engine.wait_for_grammars()
        mortal.engine.step()
    mortal.engine.run()
    assert mortal.engine.ends["a"].finish_reason == "stop"


def test_masks_that_do_not_come_are_not_waited_for_for_ever(
    mortal: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "MASK_SECONDS", 0.2)
    mortal.add("a", {"regex": "[ab]{5}"})
    mortal.add("free", None, max_tokens=4)
    mortal.engine.wait_for_grammars()
    os.kill(masker_of(mortal), signal.SIGSTOP)
    mortal.engine.step()
    assert len(mortal.engine.tokens["free"]) == 1
    assert not mortal.engine.tokens.get("a")
    mortal.engine.run()
    assert len(mortal.text("a")) == 5


def test_without_memory_the_kernel_ends_these_processes_before_the_core(mortal: Walker) -> None:
    assert mortal.say({"regex": "c"})[0] == "c"
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(Path(f"/proc/{masker_of(mortal)}/oom_score_adj").read_text()) > own


def test_closing_leaves_no_process(folder: Path) -> None:
    walker = Walker(folder)
    walker.say({"regex": "a"})
    processes = walker.engine.grammars._processes
    assert processes is not None
    pids = [processes.pid, masker_of(walker)]
    walker.engine.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
