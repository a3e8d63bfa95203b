"""Fixtures: each redis-server found, a store under a fresh prefix on it, a chat to play with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sessions.embedded import EmbeddedRedis
from sessions.store import SessionStore
from tests.redis_server import fresh_prefix, redis_binaries, running_redis
from tests.redis_topology import RedisCluster, running_cluster
from tests.sessions.chat import Chat

BINARIES = redis_binaries()
# The oldest that is supported; what it does, later ones and a cluster do in `make test-slow`.
OLDEST = list(BINARIES)[-1:] or ["none"]
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in [*list(BINARIES)[:-1], "cluster"]]


@pytest.fixture(scope="session", params=[*OLDEST, *OTHERS])
def any_redis(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis | RedisCluster]:
    """What a store may be opened on: one server of each version found, and a cluster."""
    if not BINARIES:
        pytest.skip("no redis-server found")
    if request.param == "cluster":
        with running_cluster(BINARIES[OLDEST[0]]) as cluster:
            yield cluster
    else:
        flags = ("--maxclients", "500")
        with running_redis(BINARIES[request.param], extra_args=flags) as redis:
            yield redis


@pytest.fixture
def redis_server(any_redis: EmbeddedRedis | RedisCluster) -> EmbeddedRedis:
    """One server, for a test that is about one."""
    if isinstance(any_redis, RedisCluster):
        pytest.skip("about one server")
    return any_redis


@pytest.fixture(params=[*OLDEST, *OTHERS[:-1]])
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
async def store(
    any_redis: EmbeddedRedis | RedisCluster, prefix: str
) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(any_redis.url, prefix=prefix)
    yield store
    await store.close()


@pytest.fixture
async def other_store(
    any_redis: EmbeddedRedis | RedisCluster, prefix: str
) -> AsyncIterator[SessionStore]:
    """Another worker's store on the same data."""
    store = await SessionStore.open(any_redis.url, prefix=prefix)
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
