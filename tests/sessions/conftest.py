"""Fixtures: each redis-server found, a store under a fresh prefix on it, a chat to play with."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.rights import acl_rule
from sessions.store.store import SessionStore
from tests.helpers.redis_server import fresh_prefix, redis_binaries, running_redis
from tests.helpers.redis_topology import RedisCluster, running_cluster
from tests.sessions.helpers.chat import Chat

BINARIES = redis_binaries()
# The oldest that is supported; what it does, later ones and a cluster do in `make test-slow`.
OLDEST = list(BINARIES)[-1:] or ["none"]
OTHERS = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in [*list(BINARIES)[:-1], "cluster", "restricted"]
]
# What tests send beyond what an ACL user of Parley may.
OPERATOR: Final = "client config dump echo flushall hvals keys memory script type"


@dataclass(frozen=True)
class RestrictedRedis:
    """A server whose user has the documented rights, and those of an operator."""

    url: str


AnyRedis = EmbeddedRedis | RedisCluster | RestrictedRedis


@pytest.fixture(scope="session", params=[*OLDEST, *OTHERS])
def any_redis(request: pytest.FixtureRequest) -> Iterator[AnyRedis]:
    """What a store may be opened on: each version found, a cluster, a user with few rights."""
    if not BINARIES:
        pytest.skip("no redis-server found")
    if request.param == "cluster":
        with running_cluster(BINARIES[OLDEST[0]]) as cluster:
            yield cluster
    elif request.param == "restricted":
        with running_redis(BINARIES[OLDEST[0]]) as redis:
            operator = "".join(f" +{name}" for name in OPERATOR.split())
            make_user(redis, f"on >secret {acl_rule('test-')}{operator}")
            yield RestrictedRedis(f"{redis.url}?username=parley&password=secret")
    else:
        flags = ("--maxclients", "500")
        with running_redis(BINARIES[request.param], extra_args=flags) as redis:
            yield redis


@pytest.fixture
def redis_server(any_redis: AnyRedis) -> EmbeddedRedis:
    """One server, for a test that is about one."""
    if not isinstance(any_redis, EmbeddedRedis):
        pytest.skip("about one server")
    return any_redis


def make_user(redis: EmbeddedRedis, rule: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(redis.socket_path)
        connection.sendall(f"ACL SETUSER parley {rule}\r\n".encode())
        assert connection.recv(1000) == b"+OK\r\n"


@pytest.fixture(params=[*OLDEST, *OTHERS[:-2]])
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
async def store(any_redis: AnyRedis, prefix: str) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(any_redis.url, prefix=prefix)
    yield store
    await store.close()


@pytest.fixture
async def other_store(any_redis: AnyRedis, prefix: str) -> AsyncIterator[SessionStore]:
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
