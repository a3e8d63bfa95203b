"""Parley starts: before its Redis, or with one that it must refuse, in one line."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.redis_site import BINARY, HEAL_SECONDS, PACE, Site, ask, whole
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import running_redis
from tests.helpers.redis_topology import wait_for
from tests.helpers.running_time import running_time


@pytest.mark.slow
@pytest.mark.row("S6")
async def test_a_server_that_starts_before_redis_waits_and_then_joins(
    oracle_model: Path, tmp_path: Path
) -> None:
    redis = EmbeddedRedis(tmp_path / "redis", binary=BINARY)
    environment = {"PARLEY_REDIS_URL": redis.url, "PARLEY_PACE": str(PACE)}
    server = Server(tmp_path / "data", oracle_model, None, **environment)
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(redis.socket_path, f"{tmp_path}/p"))
        here = Site(server, redis, proxy)
        stack.callback(redis.stop)
        stack.callback(server.close)
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        away = (503, {"status": "unavailable", "store": "unavailable"})
        await asyncio.to_thread(wait_for, lambda: server.url and here.readyz() == away)
        async with Client(server) as client:
            assert await client.closed() == 1013
        assert (await asyncio.to_thread(server.get, "/healthz"))[0] == 200
        (worker,) = server.children("server.worker")
        redis.start()
        started = running_time()
        await starting
        assert running_time() - started < HEAL_SECONDS
        assert server.children("server.worker") == [worker]
        async with Client(server) as client:
            session, response = await ask(client, 60)
            await whole(here, client, session, response, 60)


@pytest.fixture
def plain_redis() -> Iterator[EmbeddedRedis]:
    with running_redis(BINARY) as redis:
        yield redis


def refused_start(folder: Path, model: Path, **environment: str) -> str:
    """What `parley serve` says when it does not start: one line."""
    settings = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")},
        "PARLEY_MODEL": str(model),
        "PARLEY_PORT": "0",
        "PARLEY_DATA_DIR": str(folder / "data"),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-m", "server", "serve"],
        env=settings,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2, (done.returncode, done.stderr)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return line


@pytest.mark.row("B64")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://me:hush@host", "redis_url"),
        ("redis://me:hush@host:port", "redis_url"),
        ("SOCKET?username=me&password=hush", "refused our credentials"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_without_its_password(
    plain_redis: EmbeddedRedis, oracle_model: Path, tmp_path: Path, url: str, words: str
) -> None:
    url = url.replace("SOCKET", plain_redis.url)
    line = await asyncio.to_thread(refused_start, tmp_path, oracle_model, PARLEY_REDIS_URL=url)
    assert words in line and "hush" not in line


@pytest.mark.row("R6")
@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("ACL SETUSER me on >pw ~* &* +@all -xadd", "denies our user XADD"),
        ("CONFIG SET maxmemory-policy allkeys-lru", "set maxmemory-policy noeviction"),
        ("HSET parley:sys schema 99", "the data has schema 99"),
        ("HSET parley:sys fingerprint other", "another server with another secret"),
    ],
    ids=["r15", "r6", "b65-schema", "b65-secret"],
)
async def test_a_redis_that_would_lose_or_misread_data_is_refused_in_one_line(
    plain_redis: EmbeddedRedis, oracle_model: Path, tmp_path: Path, setup: str, words: str
) -> None:
    client = RedisClient(plain_redis.url)
    await client.call(*setup.split())
    await client.close()
    url = plain_redis.url + ("?username=me&password=pw" if "ACL" in setup else "")
    line = await asyncio.to_thread(
        refused_start,
        tmp_path,
        oracle_model,
        PARLEY_REDIS_URL=url,
        PARLEY_REDIS_SECRET="a secret that all servers share",
    )
    assert re.search(words, line), line
