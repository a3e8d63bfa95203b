"""Servers for clients of others, which keep their conversations themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.config.models import DEMO
from tests.end_to_end.site.harness import Server


@pytest.fixture(scope="session")
def counting_server(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    yield from serving(Server(tmp_path_factory.mktemp("sdks") / "data", f"counting={oracle_model}"))


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The built-in model, as docs/clients/clients.md asks it."""
    yield from serving(Server(tmp_path_factory.mktemp("demo") / "data", DEMO, PARLEY_PACE="0"))


def serving(server: Server) -> Iterator[Server]:
    server.history.engines.clear()  # which count requests of which nothing is stored
    try:
        yield server.start()
    finally:
        server.close()
