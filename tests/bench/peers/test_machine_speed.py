"""The speed of memory and of multiplications, of the real machine."""

from pathlib import Path

import pytest

from bench.peers import machine_speed
from bench.peers.machine_speed import MachineSpeed, Speed
from tests.helpers.built_kernels import needs_kernels


@needs_kernels
def test_the_machine_reads_and_multiplies(tmp_path: Path) -> None:
    speed = MachineSpeed(tmp_path, threads=1).measure()
    assert speed.bandwidth is not None and 0.1 < speed.bandwidth < 2000
    assert speed.gigaflops is not None and 0.1 < speed.gigaflops < 5000


def test_without_a_compiler_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_speed, "find_compiler", lambda: None)
    assert MachineSpeed(tmp_path, threads=1).measure() == Speed()


@needs_kernels
def test_more_threads_than_it_can_have_are_not_measured(tmp_path: Path) -> None:
    assert MachineSpeed(tmp_path, threads=1000).measure() == Speed()
