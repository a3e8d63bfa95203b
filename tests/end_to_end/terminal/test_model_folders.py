"""`parley serve` with a broken model folder: one line with file and field, and exit code 2."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.helpers.broken_folders import MORE, SEEN, BrokenFolder
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT
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
    done = subprocess.run(
        [sys.executable, "-m", "server", "serve"],
        cwd=ROOT,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")},
            "PARLEY_MODEL": str(folder),
            "PARLEY_PORT": "0",
            "PARLEY_LOG_FORMAT": "text",
            "PARLEY_DATA_DIR": str(tmp_path / "data"),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    (line,) = [line for line in said.splitlines() if "parley:" in line]
    assert line.startswith(f"parley: {folder}"), said
    assert [word for word in broken.words if word not in line] == [], said
    assert "Traceback" not in said and "[error" not in said
