"""`EmbeddedRedis`: keeps what was acknowledged, dies with its parent, says what is wrong."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import EmbeddedRedisError
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.sessions.helpers.chat import Chat


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_everything_acknowledged_survives_kill_9(own_redis: EmbeddedRedis) -> None:
    store = await SessionStore.open(own_redis.url)
    chat = await Chat.create(store)
    rid = (await chat.begin("hello")).response_id
    for number in range(2, 302):
        await chat.append(rid, number, str(number))
    assert own_redis.pid is not None
    os.kill(own_redis.pid, signal.SIGKILL)
    wait_until(lambda: own_redis.poll() is not None)
    url = own_redis.url
    own_redis.start()
    assert own_redis.url == url
    assert [number for number, _ in await store.runs.events(rid)] == list(range(1, 302))
    assert len(await store.runs.token_ids(rid)) == 300
    page = await store.messages.path("alice", chat.session_id)
    assert [message.text for message in page.messages] == ["hello", ""]
    await chat.finish(rid, 302)
    await store.close()


async def test_a_clean_stop_keeps_everything_too(own_redis: EmbeddedRedis) -> None:
    store = await SessionStore.open(own_redis.url)
    chat = await Chat.create(store)
    own_redis.stop()
    assert own_redis.poll() == 0
    own_redis.start()
    assert (await store.sessions.get("alice", chat.session_id)).id == chat.session_id
    await store.close()


def test_the_socket_and_its_directory_are_private(own_redis: EmbeddedRedis) -> None:
    assert stat.S_IMODE(own_redis.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(os.stat(own_redis.socket_path).st_mode) == 0o700


def test_a_second_server_on_the_directory_is_refused(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.connection.embedded.LOCK_SECONDS", 0.05)
    with pytest.raises(EmbeddedRedisError, match="in use by another server"):
        EmbeddedRedis(own_redis.directory).start()
    with pytest.raises(EmbeddedRedisError, match="running already"):
        own_redis.start()


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path / ("d" * 100) / "sp ace")
    redis.start()
    try:
        assert len(redis.socket_path) <= 100
        runtime = os.path.dirname(redis.socket_path)
        assert stat.S_IMODE(os.stat(runtime).st_mode) == 0o700
    finally:
        redis.stop()
    assert not os.path.exists(runtime)


async def test_a_path_with_odd_characters_can_be_connected_to(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path / "sp ace%20?#ü")
    redis.start()
    try:
        store = await SessionStore.open(redis.url)
        await store.ping()
        await store.close()
    finally:
        redis.stop()


@pytest.mark.parametrize("killer", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_dies_with_its_parent_and_the_next_one_waits_for_it(
    tmp_path: Path, killer: signal.Signals
) -> None:
    script = """
        import sys, time
        from sessions.connection.embedded import EmbeddedRedis
        redis = EmbeddedRedis(sys.argv[1])
        redis.start()
        print(redis.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "redis")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, killer)
    parent.wait()
    parent.stdout.close()
    successor = EmbeddedRedis(tmp_path / "redis")
    successor.start()  # waits for the lock that the orphan holds
    assert not is_alive(pid)
    successor.stop()


def test_errors_are_one_line_and_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="cannot run /nowhere/redis-server"):
        EmbeddedRedis(tmp_path / "a", binary="/nowhere/redis-server").start()
    with pytest.raises(EmbeddedRedisError, match="ended with status 1: "):
        EmbeddedRedis(tmp_path / "b", extra_args=("--no-such-setting", "x")).start()
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedRedisError, match="cannot use"):
        EmbeddedRedis(tmp_path / "file" / "c").start()
    with pytest.raises(EmbeddedRedisError, match="not started"):
        EmbeddedRedis(tmp_path / "d").poll()


def test_a_silent_binary_is_given_up_and_ended(tmp_path: Path) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text('#!/bin/sh\n[ "$1" = --version ] || exec sleep 60\n')
    binary.chmod(0o755)
    redis = EmbeddedRedis(tmp_path / "redis", binary=str(binary))
    with pytest.raises(EmbeddedRedisError, match="did not answer"):
        redis.start(timeout_seconds=0.05)
    assert redis.poll() == -signal.SIGTERM
