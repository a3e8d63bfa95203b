"""A real `parley serve` with the counting model, and the history checker after every test."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from tests.end_to_end.clients.bystander import streaming_bystander
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.oracle.planted_histories import World
from tests.end_to_end.site.harness import TESTING, Client, Server, open_servers
from tests.end_to_end.site.wiring import two_workers_serve
from tests.helpers.tiny_model import build_oracle_model

FAILED = pytest.StashKey[bool]()
started_by: WeakKeyDictionary[Server, str] = WeakKeyDictionary()  # the name of a fixture


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Note which fixture has started a server. Those of the session do so themselves: pytest asks
    only the conftest of the root about them.
    """
    before = list(open_servers)
    try:
        return (yield)
    finally:
        for server in open_servers:
            if server not in before:
                started_by[server] = fixturedef.argname


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Check what the test's open servers have shown and stored, before the fixtures close them."""
    violated: Exception | None = None
    try:
        for history in {id(s.history): s.history for s in servers_of(item)}.values():
            history.forget() if item.stash.get(FAILED, False) else history.check()
    except Exception as error:
        violated = error
    yield
    if violated is not None:
        raise violated


def servers_of(item: pytest.Item) -> list[Server]:
    """All that it can have reached: not those that fixtures of other tests have started."""
    assert isinstance(item, pytest.Function)
    names = {None, *item.fixturenames}
    return [server for server in open_servers if started_by.get(server) in names]


@pytest.fixture
def world() -> World:
    """For tests of the checkers: a history in which nothing is wrong yet."""
    return World()


@pytest.fixture(scope="session")
def oracle_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_oracle_model(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="session")
def _shared_server(
    oracle_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    # Paced, so that an answer lasts long enough to be stopped in the middle.
    server = Server(tmp_path_factory.mktemp("shared") / "data", oracle_model, PARLEY_PACE="200")
    started_by[server] = "_shared_server"
    try:
        server.start()
        # The admin's token must work after the wrong ones that tests send from this address.
        assert server.get("/v1/admin/stats", admin_token(server))[0] == 200
        yield server
    finally:
        server.close()


@pytest.fixture
def server(_shared_server: Server) -> Server:
    """The shared server; a test must leave it healthy."""
    status, body = _shared_server.get("/readyz")
    assert status == 200, body
    return _shared_server


@pytest.fixture(scope="session")
def _two_workers(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("two") / "data"
    server = Server(data, oracle_model, None, **TESTING, PARLEY_WORKERS="2", PARLEY_PACE="100")
    started_by[server] = "_two_workers"
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def two_workers(_two_workers: Server) -> Server:
    """A shared server with two workers; a test that ends one need not wait for the next."""
    await two_workers_serve(_two_workers)
    return _two_workers


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


@pytest.fixture
async def bystander(server: Server) -> AsyncIterator[Client]:
    """Another user's answer, from before the test until after it: whole and in order."""
    async with streaming_bystander(server) as client:
        yield client


@pytest.fixture
async def admin(two_workers: Server) -> AsyncIterator[Http]:
    """An admin's requests to the shared server with two workers."""
    async with Http(two_workers, admin_token(two_workers)) as http:
        yield http
