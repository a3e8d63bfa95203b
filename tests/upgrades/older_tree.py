"""Older versions whose data and workers this one must live with, and their files.

`0.1.0` is the first version that was announced. `one-model` is the last one that served a
single model: 3f398c3, the parent of 78e3532, which began `--quantize int4` and with it the work on
GGUF files, published checkpoints and several models. Until then nothing of that work was there, and
all that came before was: presets, queues, adapters, settings kept with messages.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.helpers.root import ROOT

OLDER = {"0.1.0": "f11b3be", "one-model": "3f398c3"}  # version → commit


def extract(version: str, folder: Path, *paths: str) -> Path:
    """Put the files of this version into the folder: all, or those below these paths."""
    commit = OLDER[version]
    done = subprocess.run(["git", "archive", commit, *paths], cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.skip(f"no history with {commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def extract_to_run(version: str, folder: Path) -> Path:
    """All files of this version with its kernels built, for processes with it as PYTHONPATH."""
    extract(version, folder)
    # A library is named after all that it is made of: each version's is built once on a machine.
    (ROOT / "build").mkdir(exist_ok=True)
    (folder / "build").symlink_to(ROOT / "build")
    # Processes are started with -P: without PYTHONPATH they would run the code of this version.
    code = (
        "import engine, server, sessions as s; print(engine.__path__, server.__path__, s.__path__)"
    )
    environment = os.environ | {"PYTHONPATH": str(folder)}
    printed, _ = (
        subprocess.run(
            [sys.executable, "-P", *arguments],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for arguments in (("-c", code), ("-m", "csrc.build"))  # a start would not wait for it
    )
    assert printed.count(str(folder)) == 3, printed
    return folder
