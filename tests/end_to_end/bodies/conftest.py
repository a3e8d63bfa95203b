"""A server for bodies that nobody counts the answers of."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.site.harness import Server


@pytest.fixture(scope="session")
def bodies_server(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bodies") / "data"
    server = Server(folder, oracle_model, PARLEY_MAX_SESSIONS_PER_USER="0")
    server.history.engines.clear()  # which count requests of which nothing is stored
    try:
        yield server.start()
    finally:
        server.close()
