"""Test files of vLLM, run against our engine; they are not ours to keep, so they are not here.

They come from the source package on the index (`vllm_source.py`) and run in a process whose package
`vllm` is the one in this folder: the quick ones in one process, those of `AsyncLLM` in several and
only in `make test-slow`. docs/engine.md says which of them are chosen, and why not the others.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.helpers.tiny_model import build_oracle_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 600
MAX_POSITIONS = 65_536  # some of these tests ask for 50,000 tokens
RUN = "import sys, vllm, pytest; sys.exit(pytest.main(sys.argv[1:]))"  # our vllm is there first

# A file under `tests/`: which of its functions are run (all without one), how many tests they are.
FILES: Mapping[str, tuple[Sequence[str], int]] = {
    "detokenizer/test_check_stop_strings.py": ((), 9),
    "samplers/test_non_finite_params.py": ((), 12),
    "test_outputs.py": (("test_request_output_forward_compatible",), 1),
    "test_request_input_bounds.py": (("test_duplicate_bad_words_are_deduplicated_in_order",), 1),
    "test_sampling_params.py": (
        (
            "test_extra_args_rejects_nested_integer_overflow",
            "test_extra_args_accepts_messagepack_integer_boundaries",
            "test_extra_args_preserves_custom_objects_and_shared_containers",
        ),
        8,
    ),
    "v1/engine/test_output_processor.py": (
        ("test_request_output_collector", "test_cumulative_output_collector_n"),
        2,
    ),
}
ASYNC_LLM = "v1/engine/test_async_llm.py"
SLOW: Mapping[str, int] = {  # what is selected of `ASYNC_LLM`, as for pytest -k, and how many
    "(test_load or test_abort or finished or mid_stream) and Robert": 7,
    "multi_abort or test_check_health or test_abort_final or test_dp_rank": 6,
    "pause and not fanout": 9,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("model"), max_positions=MAX_POSITIONS)


def run(source: Path, model: Path, folder: Path, *chosen: str) -> Counter[str]:
    """Run these tests of vLLM's, all of which must pass; how many did, by file."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    options = ["-rA", "-c", folder / "pytest.ini", "--rootdir", source, "--noconftest"]
    options += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, options), *chosen],
        cwd=source / "tests",
        env={
            **os.environ,
            "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PARLEY_COMPAT_MODEL": str(model),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return Counter(re.findall(r"^PASSED (?:tests/)?([^:]+)::", done.stdout, re.M))


@pytest.mark.slow
def test_the_chosen_tests_of_vllm_pass(source: Path, model: Path, tmp_path: Path) -> None:
    chosen = [
        f"{path}::{name}" if name else path
        for path, (names, _) in FILES.items()
        for name in names or [""]
    ]
    num_passed = run(source, model, tmp_path, *chosen)
    assert num_passed == {path: number for path, (_, number) in FILES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("selected", SLOW)
def test_the_chosen_tests_of_vllm_s_async_llm_pass(
    source: Path, model: Path, tmp_path: Path, selected: str
) -> None:
    num_passed = run(source, model, tmp_path, ASYNC_LLM, "-k", selected)
    assert num_passed == {ASYNC_LLM: SLOW[selected]}
