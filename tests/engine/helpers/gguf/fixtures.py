"""Fixtures of the tests of GGUF files: a cache of their own, and checkpoints to write."""

from pathlib import Path

import pytest

from tests.engine.helpers.greedy_oracle import Folders, families_in


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return families_in(tmp_path_factory.mktemp("checkpoints"))
