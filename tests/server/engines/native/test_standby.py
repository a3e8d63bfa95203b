"""When a standby core is started, taken, given up; the processes are scripted."""

from collections.abc import Iterator
from threading import Event
from typing import Any, cast

import pytest

from engine import EngineStartError
from engine.config import EngineConfig
from server.engines.native import standby as module
from server.engines.native.standby import AGAIN_SECONDS, Standby
from tests.helpers.patience import PATIENCE

REPORT = {"ready": True, "num_blocks": 77, "standby_bytes": 5}


class ScriptedCore:
    """As `CoreProcess`; `prepare` says that it is loaded, or why it is not."""

    made: list["ScriptedCore"]

    def __init__(self, config: EngineConfig, *, standby_bytes: int | None = None) -> None:
        self.config, self.standby_bytes = config, standby_bytes
        self.pid = 1
        self.is_prepared = self.is_called = self.is_ended = False
        self.status: int | None = None
        self.problem: Exception | None = None
        self.report = REPORT
        self._asked, self._waited = Event(), Event()
        self.made.append(self)

    def prepare(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self._asked.set()
        assert self._waited.wait(PATIENCE)

    def wait_prepared(self) -> None:
        assert self._asked.wait(PATIENCE)
        if self.problem is not None:
            self._waited.set()
            raise self.problem
        self.is_prepared = True
        self._waited.set()

    def call(self) -> None:
        self.is_called = True

    def poll(self) -> int | None:
        return self.status

    def terminate(self, timeout: float = 5.0) -> int:
        self.is_ended = True
        self._asked.set()
        return 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScriptedCore]]:
    ScriptedCore.made = []
    monkeypatch.setattr(module, "CoreProcess", ScriptedCore)
    yield ScriptedCore.made
    for core in ScriptedCore.made:
        core._asked.set()


def standby() -> Standby:
    return Standby(EngineConfig(model="m", address="a", served_model_name="m"))


def serving(**report: Any) -> Any:
    core = cast("Any", ScriptedCore(EngineConfig(model="m", address="a", served_model_name="m")))
    ScriptedCore.made.remove(core)
    core.report = REPORT | report
    return core


def test_one_is_started_with_the_sizes_of_the_core_that_serves(made: list[ScriptedCore]) -> None:
    second, core = standby(), serving()
    second.watch(core)
    second.watch(core)
    (started,) = made
    assert (started.config.num_blocks, started.standby_bytes) == (77, 5)


def test_the_one_that_is_loaded_is_called_and_the_next_gets_another(
    made: list[ScriptedCore],
) -> None:
    second, core = standby(), serving()
    second.watch(core)
    made[0].prepare()
    assert second.take() is cast("Any", made[0])
    assert made[0].is_called and not made[0].is_ended
    second.watch(serving())
    assert len(made) == 2


def test_one_that_still_loads_is_ended_for_a_core_of_its_own(made: list[ScriptedCore]) -> None:
    second = standby()
    assert second.take() is None
    second.watch(serving())
    assert second.take() is None
    assert made[0].is_ended and not made[0].is_called


def test_one_that_has_died_is_not_taken(made: list[ScriptedCore]) -> None:
    second = standby()
    second.watch(serving())
    made[0].prepare()
    made[0].status = -9
    assert second.take() is None and not made[0].is_called


def test_one_that_has_died_is_replaced_after_a_while(made: list[ScriptedCore]) -> None:
    clock = [1000.0]
    config = EngineConfig(model="m", address="a", served_model_name="m")
    second, core = Standby(config, now=lambda: clock[0]), serving()
    second.watch(core)
    made[0].prepare()
    made[0].status = -9
    second.watch(core)
    second.watch(core)
    assert len(made) == 1
    clock[0] += AGAIN_SECONDS
    second.watch(core)
    assert len(made) == 2


def test_one_that_finds_no_memory_is_said_once_and_tried_again_for_the_next_core(
    made: list[ScriptedCore], capsys: pytest.CaptureFixture[str]
) -> None:
    second, core = standby(), serving()
    second.watch(core)
    made[0].prepare(EngineStartError("memory is short", ""))
    while second._second is not None:  # its thread is about to say so
        second.watch(core)
    second.watch(core)
    said = capsys.readouterr()
    assert (said.out + said.err).count("memory is short") == len(made) == 1
    assert second.take() is None
    second.watch(core)
    assert len(made) == 2


def test_one_that_cannot_be_waited_for_is_ended_said_and_tried_again_for_the_next_core(
    made: list[ScriptedCore], capsys: pytest.CaptureFixture[str]
) -> None:
    second, core = standby(), serving()
    second.watch(core)
    made[0].prepare(OSError("no descriptors"))
    while second._second is not None:  # its thread is about to say so
        second.watch(core)
    assert made[0].is_ended
    said = capsys.readouterr()
    assert "no descriptors" in said.out + said.err  # with the trace
    assert second.take() is None
    second.watch(core)
    assert len(made) == 2


def test_there_is_none_beside_a_model_on_a_gpu(
    made: list[ScriptedCore], capsys: pytest.CaptureFixture[str]
) -> None:
    second, core = standby(), serving(standby_bytes=None)
    second.watch(core)
    second.watch(core)
    said = capsys.readouterr()
    assert (said.out + said.err).count("on a GPU") == 1 and made == []


def test_a_stop_ends_it_whatever_it_does(made: list[ScriptedCore]) -> None:
    second = standby()
    second.stop()
    second.watch(serving())
    second.stop()
    assert made[0].is_ended
