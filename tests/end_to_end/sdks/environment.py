"""Environments of their own for clients of others: what they need is not what Parley needs.

They lie in `build/sdks/` and `build/clients/`, under the names of the versions that are pinned
here, and are made once.
"""

import ast
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from server.bootstrap import torch_requirement
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

SCRIPTS = Path(__file__).parent / "scripts"  # what runs there
FOLDER = ROOT / "build" / "sdks"  # of OpenAI's own, for `make test`
OTHERS = ROOT / "build" / "clients"  # of others', which are larger
OPENAI_PYTHON = "openai[realtime]==3.57.0"  # which brings another websockets than ours
OPENAI_NODE = "openai@7.57.0"
LITELLM = "litellm==1.110.2"  # MIT, 0.4 GB with what it needs
LANGCHAIN = "langchain-openai==1.7.4"  # MIT, 0.1 GB
GUIDELLM = "guidellm==0.8.1"  # Apache-2.0, 1.5 GB
OPEN_WEBUI = "open-webui==0.12.4"  # its own licence, 1.3 GB
LEFT_OUT = {  # of it: what runs models of its own, on torch
    "accelerate",
    "faster-whisper",
    "opencv-python-headless",
    "rapidocr",
    "sentence-transformers",
    "transformers",
}
REQUIREMENTS = """
import importlib.metadata, re, sys
for each in importlib.metadata.requires(sys.argv[1]):
    if "extra ==" not in each and re.match(r"[\\w.-]+", each)[0] not in sys.argv[2:]:
        print(each)
"""


def python_with(requirement: str, *more: str, among: Path = FOLDER) -> Path:
    """An interpreter that imports it; `more` is to be there, too."""
    folder = among / requirement.replace("==", "-")
    python = folder / "bin" / "python"
    with _made_once(folder) as is_made:
        if not is_made:
            _run([sys.executable, "-m", "venv", str(folder)])
            _install(python, requirement, *more)
    return python


def guidellm_python() -> Path:
    """It needs torch, and any will do: ours is there already."""
    return python_with(GUIDELLM, torch_requirement(), among=OTHERS)


def open_webui_python() -> Path:
    """An interpreter beside which `open-webui` lies."""
    folder = OTHERS / OPEN_WEBUI.replace("==", "-")
    python = folder / "bin" / "python"
    with _made_once(folder) as is_made:
        if not is_made:
            _run([sys.executable, "-m", "venv", str(folder)])
            _install(python, "--no-deps", OPEN_WEBUI)
            name = OPEN_WEBUI.partition("==")[0]
            needed = _run([str(python), "-c", REQUIREMENTS, name, *LEFT_OUT])
            _install(python, *needed.split("\n"))
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


def calls_in(script: Path) -> list[str]:
    """The names of the calls that `run.py` makes, as it says them: `wrong_calls.no_messages`."""
    return [
        f"{script.stem}.{node.name}"
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_"
    ]


def running(python: Path, *scripts: Path) -> list[str]:
    """The command of all calls of these scripts."""
    return [str(python), str(SCRIPTS / "run.py"), *map(str, scripts)]


def run_calls(
    command: list[str],
    url: str,
    token: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What has become of each call that a program makes: "" if all is well."""
    done = subprocess.run(
        [*command, f"{url}/v1", token],
        cwd=folder,
        env=clean_environment(environment),
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
        [str(python_with(OPENAI_PYTHON)), str(SCRIPTS / "strict.py")],
        input="\n".join(lines),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def request_fields(*types: str) -> dict[str, list[str]]:
    """Which fields OpenAI's types for requests have; of a union, the `type`s of what it holds."""
    done = subprocess.run(
        [str(python_with(OPENAI_PYTHON)), str(SCRIPTS / "fields.py"), *types],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of ours: no settings, no keys, no path to our modules."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, **(more or {})}


class _made_once:
    """Whether the folder is whole; it is after this. One process at a time makes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "made"

    def __enter__(self) -> bool:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._folder.with_name(f"{self._folder.name}.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if not self._mark.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._mark.exists()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._mark.touch()
        self._lock.close()


def _install(python: Path, *requirements: str) -> None:
    _run([str(python), "-m", "pip", "install", "--quiet", *filter(None, requirements)])


def _run(command: list[str], folder: Path | None = None) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout
