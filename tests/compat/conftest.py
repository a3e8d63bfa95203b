import os
from pathlib import Path

import pytest

from tests.compat.vllm_source import Unavailable, vllm_source


@pytest.fixture(scope="session")
def source() -> Path:
    """vLLM's source, of the package index. Where it must be there (`.ci/run`), none is a failure.

    The environment variable PARLEY_VLLM_SOURCE may name a source tree of the same version.
    """
    if folder := os.environ.get("PARLEY_VLLM_SOURCE"):
        return Path(folder).resolve(strict=True)
    try:
        return vllm_source()
    except Unavailable as problem:
        if os.environ.get("TESTS_NEED_INDEX"):
            pytest.fail(str(problem))
        # No index on a newcomer's machine; in CI, TESTS_NEED_INDEX makes it a failure.
        pytest.skip(str(problem))
