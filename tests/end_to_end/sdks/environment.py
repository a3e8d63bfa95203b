"""Environments of their own for clients of others: what they need is not what Parley needs.

They lie in `build/sdks/`, under the names of the versions that are pinned here, and are made once.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

FOLDER = ROOT / "build" / "sdks"
OPENAI_PYTHON = "openai==3.57.0"
OPENAI_WEBSOCKET = "openai[realtime]==3.57.0"  # which brings another websockets than ours
OPENAI_NODE = "openai@7.57.0"


def python_with(requirement: str) -> Path:
    """An interpreter that imports it."""
    folder = FOLDER / requirement.replace("==", "-")
    python = folder / "bin" / "python"
    with _made_once(folder) as is_made:
        if not is_made:
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(python), "-m", "pip", "install", "--quiet", requirement])
    return python


def node_with(package: str) -> Path:
    """A folder whose modules may import it."""
    if shutil.which("npm") is None:
        # Node.js is nothing that Parley itself needs.
        pytest.skip("there is no npm")
    folder = FOLDER / package.replace("@", "-node-")
    with _made_once(folder) as is_made:
        if not is_made:
            folder.mkdir(parents=True)
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            _run(["npm", "install", *options, package], folder)
    return folder


def run_calls(
    command: list[str], url: str, token: str, folder: Path | None = None
) -> dict[str, str]:
    """What has become of each call of a script: "" if all is well."""
    done = subprocess.run(
        [*command, f"{url}/v1", token],
        cwd=folder,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line["problem"] for line in lines}


def strict_problems(objects: Iterable[tuple[str, Any]]) -> str:
    """What OpenAI's own types say against these objects, each with the name of its type."""
    lines = [json.dumps([f"openai.types.{name}", given]) for name, given in objects]
    done = subprocess.run(
        [str(python_with(OPENAI_PYTHON)), str(Path(__file__).with_name("strict.py"))],
        input="\n".join(lines),
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class _made_once:
    """Whether the folder is whole; it is after this. One process at a time makes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "made"

    def __enter__(self) -> bool:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._lock = (FOLDER / f"{self._folder.name}.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if not self._mark.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._mark.exists()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._mark.touch()
        self._lock.close()


def _run(command: list[str], folder: Path | None = None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
