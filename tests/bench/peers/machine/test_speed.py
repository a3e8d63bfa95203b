"""The speed of memory and of multiplications, of the real machine."""

from pathlib import Path

import pytest

from bench.peers.machine import speed
from bench.peers.machine.speed import MachineSpeed, Speed
from tests.helpers.built_kernels import needs_kernels


@needs_kernels
def test_the_machine_reads_and_multiplies(tmp_path: Path) -> None:
    measured = MachineSpeed(tmp_path, threads=1).measure()
    assert measured.bandwidth is not None and 0.1 < measured.bandwidth < 2000
    assert measured.gigaflops is not None and 0.1 < measured.gigaflops < 5000


def test_without_a_compiler_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "find_compiler", lambda: None)
    assert MachineSpeed(tmp_path, threads=1).measure() == Speed()


@needs_kernels
def test_more_threads_than_it_can_have_are_not_measured(tmp_path: Path) -> None:
    assert MachineSpeed(tmp_path, threads=1000).measure() == Speed()
