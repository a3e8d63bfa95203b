"""Fixtures: each redis-server found, a store under a fresh prefix on it, a chat to play with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sessions.embedded import EmbeddedRedis
from sessions.store import SessionStore
from tests.redis_server import fresh_prefix, redis_binaries, running_redis
from tests.sessions.chat import Chat

BINARIES = redis_binaries()


@pytest.fixture(scope="session", params=list(BINARIES) or ["none"])
def redis_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """One server for all tests, once for each version found."""
    if request.param not in BINARIES:
        pytest.skip("no redis-server found")
    with running_redis(BINARIES[request.param], extra_args=("--maxclients", "500")) as redis:
        yield redis


@pytest.fixture(params=list(BINARIES) or ["none"])
def own_redis(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """A server that the test may stop, fill or kill."""
    if request.param not in BINARIES:
        pytest.skip("no redis-server found")
    with running_redis(BINARIES[request.param]) as redis:
        yield redis


@pytest.fixture
def prefix() -> str:
    return fresh_prefix()


@pytest.fixture
async def store(redis_server: EmbeddedRedis, prefix: str) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(redis_server.url, prefix=prefix)
    yield store
    await store.close()


@pytest.fixture
async def other_store(redis_server: EmbeddedRedis, prefix: str) -> AsyncIterator[SessionStore]:
    """Another worker's store on the same data."""
    store = await SessionStore.open(redis_server.url, prefix=prefix)
    yield store
    await store.close()


@pytest.fixture
async def own_store(own_redis: EmbeddedRedis) -> AsyncIterator[SessionStore]:
    """A store on the server that the test may stop, fill or kill."""
    store = await SessionStore.open(own_redis.url)
    yield store
    await store.close()


@pytest.fixture
async def chat(store: SessionStore) -> Chat:
    """A fresh session of user `alice`."""
    return await Chat.create(store)
