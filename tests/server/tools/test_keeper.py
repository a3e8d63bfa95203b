"""The supervisor's half: the process is started for who connects, and replaced when it hangs."""

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tools import keeper as module
from server.tools.configuration import ServerConfig
from server.tools.keeper import HANG_SECONDS, START_SECONDS, ToolKeeper
from tests.helpers.patience import PATIENCE


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# It says that it lives, once, and then nothing: a process whose loop hangs.
HANGING = "import os, sys\nos.write(1, b'.')\nsys.stdin.read()"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keeper(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToolKeeper]:
    """Of a program that hangs."""
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.setattr(module, "PROGRAM", "hanging")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    keeper = ToolKeeper([ServerConfig(name="a", command=sys.executable)], "info", "json", clock)
    yield keeper
    keeper.stop()


def connect(keeper: ToolKeeper) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(keeper.path))
    return client


def started(keeper: ToolKeeper) -> int:
    """The process, when it has said that it lives."""
    keeper.watch()
    assert keeper.pid is not None
    assert select.select(keeper.descriptors, [], [], PATIENCE)[0]
    keeper.watch()
    return keeper.pid


def test_it_is_started_when_a_worker_connects_and_not_before(keeper: ToolKeeper) -> None:
    keeper.watch()
    assert keeper.pid is None
    assert not select.select(keeper.descriptors, [], [], 0)[0]
    with connect(keeper):
        assert select.select(keeper.descriptors, [], [], PATIENCE)[0]
        assert started(keeper)


def test_its_socket_is_its_owners_alone_and_goes_with_the_keeper(keeper: ToolKeeper) -> None:
    assert keeper.path.parent.stat().st_mode & 0o077 == 0
    keeper.stop()
    assert not keeper.path.parent.exists()


def test_one_that_hangs_is_killed_and_another_is_started_for_who_waits(
    keeper: ToolKeeper, clock: Clock
) -> None:
    with connect(keeper):
        first = started(keeper)
        clock.now += HANG_SECONDS - 1
        keeper.watch()
        assert keeper.pid == first
        clock.now += 1
        assert keeper.due == clock.now
        keeper.watch()
        assert keeper.pid is None
        assert started(keeper) != first


def test_one_that_does_not_come_up_is_killed(keeper: ToolKeeper, clock: Clock) -> None:
    with connect(keeper):
        keeper.watch()
        assert keeper.due == clock.now + START_SECONDS
        clock.now += START_SECONDS
        os.kill(keeper.pid or 0, signal.SIGSTOP)
        while select.select(keeper.descriptors, [], [], 0)[0]:
            keeper.watch()  # what it may have said before
            clock.now += HANG_SECONDS
        keeper.watch()
        assert keeper.pid is None


def test_those_that_die_one_after_the_other_come_back_later_and_later(
    keeper: ToolKeeper, clock: Clock
) -> None:
    delays = []
    with connect(keeper):
        for _ in range(8):
            pid = started(keeper)
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            keeper.watch()
            began = clock.now
            if keeper.due is not None:
                clock.now = keeper.due
            delays.append(clock.now - began)
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_its_servers_are_ended_after_its_death(keeper: ToolKeeper) -> None:
    with connect(keeper):
        pid = started(keeper)
        mark = {"TOOL_SERVER_MARK": f"{keeper._mark}:a:", "PATH": os.environ["PATH"]}
        orphan = os.posix_spawnp("sleep", ["sleep", "1000"], mark)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        keeper.watch()
        assert os.waitpid(orphan, 0)[1] == signal.SIGKILL
