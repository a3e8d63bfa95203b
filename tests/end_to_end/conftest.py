"""A real `parley serve` with the counting model, and the history checker behind every test."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.harness import Server, open_servers
from tests.tiny_model import build_oracle_model

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Check what each open server has shown and stored, before the fixtures close it."""
    violated: Exception | None = None
    try:
        for history in {id(s.history): s.history for s in open_servers}.values():
            history.forget() if item.stash.get(FAILED, False) else history.check()
    except Exception as error:
        violated = error
    yield
    if violated is not None:
        raise violated


@pytest.fixture(scope="session")
def oracle_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="session")
def _shared_server(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    # Paced, so that an answer lasts long enough to be stopped in the middle.
    server = Server(tmp_path_factory.mktemp("shared") / "data", oracle_model, PARLEY_PACE="200")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def server(_shared_server: Server) -> Server:
    """The shared server; a test must leave it healthy."""
    status, body = _shared_server.get("/readyz")
    assert status == 200, body
    return _shared_server


@pytest.fixture(scope="session")
def two_workers(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A shared server with two workers, for tests of what admins do."""
    testing = {"PARLEY_TESTING": "1", "PARLEY_WATCHDOG_SECONDS": "30"}
    data = tmp_path_factory.mktemp("two") / "data"
    server = Server(data, oracle_model, None, **testing, PARLEY_WORKERS="2", PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def new_server(oracle_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own, for tests that break something."""
    servers: list[Server] = []

    def start(**environment: str) -> Server:
        environment.setdefault("PARLEY_PACE", "100")
        server = Server(tmp_path / f"data{len(servers)}", oracle_model, None, **environment)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.close()
