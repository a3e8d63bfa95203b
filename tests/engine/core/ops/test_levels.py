"""The whole engine at every instruction set of this machine, not just at its best."""

import os
import subprocess
import sys

import pytest

from tests.helpers.built_kernels import needs_kernels
from tests.helpers.root import ROOT

LEVELS = ("baseline", "x86_64_v3", "x86_64_v4", "avx512_vnni", "avx512_bf16")


def run(level: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PARLEY_CPU_LEVEL": level, "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_engine_and_its_kernels_pass(level: str) -> None:
    refused = run(level, "-c", "from engine.core.ops import library as ops; ops.choose('cpu')")
    if f"PARLEY_CPU_LEVEL is {level}, this machine has" in refused.stderr:
        # Its instructions would end the process: another machine has to try them.
        pytest.skip(f"this machine has no {level}")
    assert refused.returncode == 0, refused.stderr
    others = "--ignore-glob=*/test_cuda_*.py"  # have no levels
    folders = ("tests/engine", "tests/csrc", others)
    done = run(level, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *folders)
    assert done.returncode == 0, done.stdout[-6000:]
