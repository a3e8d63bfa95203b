from pathlib import Path

import pytest
import torch

from engine.core.ops import library
from engine.core.runner import machine
from engine.core.runner.machine import describe_machine

CPU = torch.device("cpu")


def test_a_machine_is_named_by_all_that_changes_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast: 9000\n")
    monkeypatch.setattr(machine, "CPU_INFO", info)
    found = describe_machine(CPU, "torch", torch.float32)
    threads = f"{torch.get_num_threads()} threads"
    assert found == f"torch, float32, torch {torch.__version__}, Fast: 9000, {threads}"
    assert describe_machine(CPU, "torch", torch.bfloat16) != found
    info.unlink()
    assert describe_machine(CPU, "torch", torch.float32) == found.replace(" Fast: 9000,", "")


def test_the_instruction_set_of_the_kernels_is_said() -> None:
    if not library.load_library():
        # Without a compiler there is nothing to name: the engine then runs without them.
        pytest.skip("the kernels cannot be built here")
    found = describe_machine(CPU, "cpu", torch.float32)
    assert found == describe_machine(CPU, "cpu", torch.float32)
    assert torch.ops.parley.cpu_level() in found.split(", ")
