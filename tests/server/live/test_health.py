"""Whether Redis can be used: it answers, takes writes, and is what it was when it was checked."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from server.config.intervals import Intervals
from server.live.health import Health, is_nearly_full
from server.live.hub import Hub
from server.telemetry.metrics import Metrics
from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreRefused
from sessions.store.store import SessionStore
from tests.helpers.redis_server import redis_binaries, running_redis
from tests.server.helpers.engines import IdleEngine
from tests.server.helpers.watching import SilentFeed

AT_ONCE = Intervals(settings=0.0)


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A server that the test may fill, flush or misconfigure."""
    with running_redis(list(redis_binaries().values())[-1]) as redis:
        yield redis


@pytest.fixture
async def store(own_redis: EmbeddedRedis) -> AsyncIterator[SessionStore]:
    store = await SessionStore.open(own_redis.url)
    yield store
    await store.close()


def health_of(store: SessionStore, **options: Any) -> Health:
    hub = Hub(store, SilentFeed(), store.keys, "w1")  # type: ignore[arg-type]
    return Health(store, IdleEngine(), hub, Metrics(), AT_ONCE, **options)


async def test_a_redis_that_takes_no_writes_is_unavailable_until_it_does(
    store: SessionStore,
) -> None:
    health = health_of(store)
    await health.check()
    assert health.problems == {}
    await store.client.call("CONFIG", "SET", "maxmemory", "1")
    health._wrote_at = float("-inf")  # the next trial write is due
    await health.check()
    assert health.problems == {"store": "unavailable"}
    await store.client.call("CONFIG", "SET", "maxmemory", "0")
    await health.check()
    assert health.problems == {}


async def test_why_redis_cannot_be_used_is_logged_and_shown_to_admins_alone(
    store: SessionStore,
) -> None:
    health = health_of(store)
    await health.check()
    await store.client.call("CONFIG", "SET", "maxmemory", "1")
    health._wrote_at = float("-inf")
    with capture_logs() as logs:
        await health.check()
    (line,) = logs
    assert (line["event"], line["store"]) == ("connection degraded", "unavailable")
    assert "not allowed when used memory > 'maxmemory'" in line["reason"]
    assert health.store_problems[0] == line["reason"]
    assert health.problems == {"store": "unavailable"}  # what everybody may read
    await store.client.call("CONFIG", "SET", "maxmemory", "0")
    await health.check()
    assert health.store_problems == []


class Usage(NamedTuple):
    """As `shutil.disk_usage` returns it, in bytes."""

    total: int
    used: int
    free: int


async def test_a_disk_that_is_nearly_full_is_reported_while_everything_works(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, free = 100 << 30, [50 << 30]

    def usage(_: Path) -> tuple[int, int, int]:
        return Usage(total, total - free[0], free[0])

    monkeypatch.setattr("server.live.health.shutil.disk_usage", usage)
    health = health_of(store, folder=tmp_path)
    for left, problems in ((2 << 30, []), (1 << 29, ["nearly full"]), (50 << 30, [])):
        free[0] = left
        with capture_logs() as logs:
            await health.check()
        told = [line["event"] for line in logs if "disk" in line["event"]]
        assert [text[-11:] for text in health.store_problems] == problems == [t[-11:] for t in told]
        assert health.problems == {}
    assert not is_nearly_full(tmp_path / "gone")


async def test_a_start_is_logged_as_connected_and_only_what_was_lost_as_restored(
    store: SessionStore,
) -> None:
    with capture_logs() as logs:
        health = health_of(store)
        await health.check()
        health.store_exited()
        await health.check()
    assert [(line["event"], line.get("engine"), line.get("store")) for line in logs] == [
        ("connected", "ok", None),
        ("connection degraded", None, "unavailable"),
        ("connection restored", None, "ok"),
    ]


async def test_a_fault_that_loses_data_is_a_problem_and_a_full_memory_is_not(
    store: SessionStore,
) -> None:
    health = health_of(store)
    await store.client.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await health.check()
    assert health.problems == {"redis": "maxmemory-policy is allkeys-lru and must be noeviction"}
    await store.client.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    used = bytes(await store.client.call("INFO", "memory")).split(b"used_memory:")[1].split()[0]
    await store.client.call("CONFIG", "SET", "maxmemory", int(int(used) * 1.15))
    await health.check()
    assert [fault.loses_data for fault in health.faults] == [False]
    assert health.problems == {}


async def test_a_store_that_was_away_at_the_start_is_checked_when_it_is_back(
    own_redis: EmbeddedRedis,
) -> None:
    store = SessionStore.connect(own_redis.url)
    own_redis.stop()
    health = health_of(store)
    await health.check()
    assert health.problems == {"store": "unavailable"}
    own_redis.start()
    await health.check()
    assert health.problems == {} and store.is_verified
    await store.close()


async def test_a_store_that_comes_back_unusable_is_refused(own_redis: EmbeddedRedis) -> None:
    client = RedisClient(own_redis.url)
    await client.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await client.close()
    refusals: list[StoreRefused] = []
    store = SessionStore.connect(own_redis.url)
    await health_of(store, on_refused=refusals.append).check()
    assert len(refusals) == 1 and not store.is_verified
    await store.close()


async def test_flushed_data_makes_the_hub_look_at_every_room(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    health, looks = health_of(store), []
    monkeypatch.setattr(health._hub.data_loss, "look_at_all", lambda: looks.append(1))
    await health.check()
    await store.client.call("FLUSHALL")
    await health.check()
    await health.check()
    assert looks == [1]


async def test_each_change_is_sent_with_its_moment(store: SessionStore) -> None:
    changes: list[None] = []
    health = health_of(store, on_change=lambda: changes.append(None))
    health.since["engine"] = 0
    await health.check()
    since = health.since["engine"]
    assert len(changes) == 1 and since > 0
    await health.check()
    assert len(changes) == 1 and health.since["engine"] == since
