"""Test files of vLLM, run against our engine; they are not ours to keep, so they are not here.

    PARLEY_VLLM_TESTS=FOLDER python -m pytest tests/compat/test_vllm_files.py -m 'slow or not slow'

FOLDER is a source tree of vLLM 0.33, the one that holds `tests/`. Each file runs in a process whose
package `vllm` is the one in this folder. docs/engine.md says which of its tests are meant to pass,
and why the others cannot.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiny_model import build_oracle_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 600
MAX_POSITIONS = 65_536  # some of these tests ask for 50,000 tokens
RUN = "import sys, vllm, pytest; sys.exit(pytest.main(sys.argv[1:]))"  # our vllm is there first


@dataclass(frozen=True)
class VllmFile:
    """A file under `tests/`, which of its tests are run, and how many these are."""

    path: str
    num_tests: int
    select: str = ""  # as for pytest -k; all of them without one


FILES = [
    VllmFile("detokenizer/test_check_stop_strings.py", 9),
    VllmFile("samplers/test_non_finite_params.py", 12),
    VllmFile("test_outputs.py", 1, "forward_compatible"),
    VllmFile("test_request_input_bounds.py", 1, "test_duplicate_bad_words"),
    VllmFile("test_sampling_params.py", 8, "test_extra_args"),
    VllmFile(
        "v1/engine/test_output_processor.py",
        2,
        "test_request_output_collector or test_cumulative_output_collector",
    ),
]
ASYNC_LLM = "v1/engine/test_async_llm.py"
SLOW_FILES = [
    VllmFile(ASYNC_LLM, 7, "(test_load or test_abort or finished or mid_stream) and Robert"),
    VllmFile(ASYNC_LLM, 5, "multi_abort or test_check_health or test_abort_final"),
    VllmFile(ASYNC_LLM, 9, "pause and not fanout"),
]


@pytest.fixture(scope="module")
def vllm_tests() -> Path:
    folder = os.environ.get("PARLEY_VLLM_TESTS")
    if folder is None:
        pytest.skip("PARLEY_VLLM_TESTS names no source tree of vLLM")
    return Path(folder, "tests").resolve(strict=True)


@pytest.fixture(scope="module")
def model(vllm_tests: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("model"), max_positions=MAX_POSITIONS)


def run(file: VllmFile, vllm_tests: Path, model: Path, folder: Path) -> None:
    """All selected tests pass, and they are as many as we know."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    options = ["-q", "-c", folder / "pytest.ini", "--rootdir", vllm_tests.parent, "--noconftest"]
    options += ["-p", "no:cacheprovider", "-p", "no:randomly", "-k", file.select]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, options), str(vllm_tests / file.path)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}",
            "PARLEY_COMPAT_MODEL": str(model),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    (num_passed,) = re.findall(r"^(\d+) passed", done.stdout, re.M)
    assert int(num_passed) == file.num_tests, done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)
def test_file_of_vllm(file: VllmFile, vllm_tests: Path, model: Path, tmp_path: Path) -> None:
    run(file, vllm_tests, model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("file", SLOW_FILES, ids=lambda file: file.select)
def test_engine_tests_of_vllm(
    file: VllmFile, vllm_tests: Path, model: Path, tmp_path: Path
) -> None:
    run(file, vllm_tests, model, tmp_path)
