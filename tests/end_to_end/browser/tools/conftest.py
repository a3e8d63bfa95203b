"""A real server whose model thinks, calls and answers by heart, and which runs tools."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.browser.tools.scripts import SCRIPTS
from tests.end_to_end.oracle.scripted_model import build_scripted_model
from tests.end_to_end.site.harness import Server
from tests.helpers.root import ROOT


@pytest.fixture(scope="session")
def _scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scripted")
    model = build_scripted_model(folder / "model", SCRIPTS)
    tools = folder / "tools.json"
    clock = {"command": sys.executable, "args": [str(ROOT / "examples" / "tool_server.py")]}
    good = {"command": sys.executable, "args": ["-m", "tests.server.tools.helpers.good_server"]}
    servers = {
        "clock": {**clock, "consent": "once"},
        "good": {**good, "cwd": str(ROOT), "env": {"FOLDER": str(folder)}},
        "gone": {"command": "/bin/false"},
    }
    tools.write_text(json.dumps({"mcpServers": servers}))
    server = Server(folder / "data", model, PARLEY_PACE="40", PARLEY_TOOLS=str(tools))
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def pipes(server: Server) -> Path:
    """The folder of the named pipes by which the tool `wait` says what it does."""
    return server.data_dir.parent


@pytest.fixture
def server(_scripted_server: Server) -> Server:
    """In the place of the server whose model counts."""
    return _scripted_server
