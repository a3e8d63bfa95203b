"""A server for clients of others, which keep their conversations themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.site.harness import Server


@pytest.fixture(scope="session")
def counting_server(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("sdks") / "data", f"counting={oracle_model}")
    server.history.engines.clear()  # which count requests of which nothing is stored
    try:
        yield server.start()
    finally:
        server.close()
