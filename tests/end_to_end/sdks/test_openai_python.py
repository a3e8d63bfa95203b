"""OpenAI's own Python client, unchanged: each call of `calls.py` does what its users expect."""

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.end_to_end.sdks.environment import OPENAI_PYTHON, python_with
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE

CALLS = Path(__file__).parent / "calls.py"
HELPERS = {"ask", "stream", "text_of", "go_on", "refused", "main"}
NAMES = [
    node.name
    for node in ast.parse(CALLS.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in HELPERS
]


@pytest.fixture(scope="module")
def server(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("sdks") / "data", oracle_model)
    server.history.engines.clear()  # which count requests of which nothing is stored
    try:
        yield server.start()
    finally:
        server.close()


@cache
def problems(url: str, token: str) -> dict[str, str]:
    """What has become of each call: "" if all is well."""
    python = python_with(OPENAI_PYTHON)
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [str(python), str(CALLS), f"{url}/v1", token],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line["problem"] for line in lines}


@pytest.mark.parametrize("name", NAMES)
def test_a_call_does_what_its_users_expect(server: Server, name: str) -> None:
    assert problems(server.url, server.token)[name] == ""
