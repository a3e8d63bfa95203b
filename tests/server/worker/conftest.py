"""A real uvicorn with our protocol classes, for the tests of each."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from server.worker.uvicorn_server import Server, uvicorn_config
from tests.server.worker.target import Target, app


@pytest.fixture
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    """Its parameter, if it has one, is `ping_seconds`."""
    config = uvicorn_config(app, ping_seconds=getattr(request, "param", 20.0))
    config.host, config.port = "127.0.0.1", 0
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    await server.ready.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Target(f"http://127.0.0.1:{port}")
    server.should_exit = True
    await serving
