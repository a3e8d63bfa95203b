"""A checkpoint as the comparison makes them, of the smallest shape that has words to draw from."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.models import SHAPES, make


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    make(replace(SHAPES["tiny"], vocab_size=1200), folder)
    return folder
