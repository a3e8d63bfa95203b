"""Fixtures: one redis-server for all tests here; a store under a fresh prefix, a hub on it."""

from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest
from hypothesis import settings

from server.live.hub import Hub
from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.feed import LiveFeed
from sessions.directory.credentials import Credentials
from sessions.directory.users import Users
from sessions.store.store import SessionStore
from tests.helpers.redis_server import fresh_prefix, redis_binaries, running_redis
from tests.server.helpers.answering import Answering
from tests.server.helpers.watching import SilentFeed
from tests.sessions.helpers.chat import Chat

BINARIES = redis_binaries()

# How long an example takes says how busy the machine is; a failing one is printed to be repeated.
settings.register_profile("server", deadline=None, print_blob=True)
settings.load_profile("server")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    if not BINARIES:
        pytest.skip("no redis-server found")
    with running_redis(next(iter(BINARIES.values()))) as redis:
        yield redis


@pytest.fixture
async def store(redis_server: EmbeddedRedis) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(redis_server.url, prefix=fresh_prefix())
    yield store
    await store.close()


@pytest.fixture
def users(store: SessionStore) -> Users:
    return Users(store.client, store.keys)


@pytest.fixture
def credentials(store: SessionStore) -> Credentials:
    return Credentials(store.client, store.keys)


@pytest.fixture
async def chat(store: SessionStore) -> Chat:
    """A fresh session of user `alice`."""
    return await Chat.create(store)


@pytest.fixture
def feed() -> SilentFeed:
    return SilentFeed()


@pytest.fixture
async def hub(store: SessionStore, feed: SilentFeed) -> AsyncIterator[Hub]:
    """That of worker `w1`, which hears what the test tells `feed` to deliver."""
    hub = Hub(store, cast("LiveFeed", feed), store.keys, "w1")
    yield hub
    await hub.close()


@pytest.fixture
async def answering(store: SessionStore, chat: Chat) -> AsyncIterator[Answering]:
    answering = await Answering(store, chat).begin()
    yield answering
    await answering.hub.close()
