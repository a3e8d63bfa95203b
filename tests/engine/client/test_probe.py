from collections.abc import Iterator

import pytest

from engine.client.launcher import PrivateDirectory
from engine.client.probe import MAX_LOOK_SECONDS, CoreProbe
from tests.engine.helpers.scripted_core import ScriptedCore


class Watched:
    """A core, and a probe whose clock stands still between looks."""

    def __init__(self, core: ScriptedCore) -> None:
        self.core = core
        self._time = 0.0
        self.probe = CoreProbe(core.address, now=lambda: self._time)

    def look(self, seconds: float = 1.0) -> float:
        """The silence so many seconds after the last look."""
        self._time += seconds
        return self.probe.look()

    def is_answered(self) -> bool:
        """Wait for the answer to the last question; False after some time without."""
        return bool(self.probe._socket.poll(1000 if not self.core.is_silent else 50))


@pytest.fixture
def watched() -> Iterator[Watched]:
    directory = PrivateDirectory()
    with ScriptedCore(directory.address) as core:
        watched = Watched(core)
        yield watched
        watched.probe.close()
    directory.remove()


def test_core_that_answers_is_never_silent(watched: Watched) -> None:
    for _ in range(5):
        assert watched.look() == 0
        assert watched.is_answered()


def test_core_that_does_not_answer_is_silent_until_it_does(watched: Watched) -> None:
    for _ in range(3):
        watched.look()
        assert watched.is_answered()
    watched.core.is_silent = True
    watched.look()
    assert not watched.is_answered()
    assert [watched.look() for _ in range(3)] == [1, 2, 3]
    watched.core.is_silent = False


def test_step_loop_that_hangs_is_silent_though_pings_are_answered(watched: Watched) -> None:
    watched.look()
    assert watched.is_answered()
    watched.core.utilities.clear()
    watched.look()
    assert [watched.look() for _ in range(2)] == [1, 2]


def test_time_in_which_we_stood_still_ourselves_does_not_count(watched: Watched) -> None:
    watched.core.is_silent = True
    watched.look()
    assert watched.look(seconds=1000) == MAX_LOOK_SECONDS
