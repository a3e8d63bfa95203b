"""A real server whose model thinks, calls and answers by heart."""

from collections.abc import Iterator

import pytest

from tests.end_to_end.browser.tools.scripts import SCRIPTS
from tests.end_to_end.oracle.scripted_model import build_scripted_model
from tests.end_to_end.site.harness import Server


@pytest.fixture(scope="session")
def _scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scripted")
    model = build_scripted_model(folder / "model", SCRIPTS)
    server = Server(folder / "data", model, PARLEY_PACE="40")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def server(_scripted_server: Server) -> Server:
    """In the place of the server whose model counts."""
    return _scripted_server
