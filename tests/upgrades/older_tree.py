"""The files of an older version, from the repository's history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.helpers.root import ROOT

OLDER = {"0.1.0": "f11b3be"}  # version → commit


def extract(version: str, folder: Path, *paths: str) -> Path:
    """Put the files of this version into the folder: all, or those below these paths."""
    commit = OLDER[version]
    done = subprocess.run(["git", "archive", commit, *paths], cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.skip(f"no history with {commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
