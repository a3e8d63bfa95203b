"""`parley serve` with a broken model folder: one line with file and field, and exit code 2."""

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.site.harness import refusal_of_start
from tests.engine.helpers.broken_folders import MORE, SEEN, BrokenFolder
from tests.helpers.tiny_model import build_tiny_model

pytestmark = pytest.mark.slow

# Found by worker, supervisor, the core before and after it has torch, and its first computation.
CHOSEN = ("tok_missing", "tmpl_syntax", "cfg_layers", "config_vocabulary_larger", "tensor_nan")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize(
    "broken",
    [broken for broken in [*SEEN, *MORE] if broken.name in CHOSEN],
    ids=lambda broken: broken.name,
)
def test_serve_refuses_a_broken_folder_with_2_and_one_line(
    broken: BrokenFolder, good: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    broken.apply(folder)
    line = refusal_of_start(tmp_path, "--model", str(folder))
    assert line.startswith(f"parley: {folder}"), line
    assert [word for word in broken.words if word not in line] == [], line
