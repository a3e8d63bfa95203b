"""The data of an older version as it was on the day that it was made.

Cookies, login codes and logs expire. So the moments at which they do are moved by the time that has
passed since; all else is byte for byte what the older version wrote, but for one word: an answer
goes on with the same model alone, and the tests build theirs anew, so the hash of its files that
stands with an answer becomes that of the new files.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.engines.native.fingerprint import model_fingerprint

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class OlderData:
    """Where the data of a version was put, and what that version answered from it."""

    directory: Path
    expected: dict[str, Any]


def restore(version: str, directory: Path, model: Path) -> OlderData:
    """Copy the data of that version to `directory`, as if it had just been written with `model`."""
    source = HERE / f"data-{version}"
    expected = json.loads((source / "expected.json").read_text())
    shutil.copytree(source, directory)
    (directory / "expected.json").unlink()
    for secret in ("token", "admin-token"):
        (directory / secret).chmod(0o600)
    passed_ms = int(time.time() * 1000) - expected["made_at"]
    file = directory / "redis" / "appendonly.aof"
    commands = [moved(command, passed_ms) for command in commands_of(file.read_bytes())]
    if "running" in expected:
        older = expected["running"]["fingerprint"].encode()
        newer = model_fingerprint(model).encode()
        commands = [[newer if word == older else word for word in each] for each in commands]
    file.write_bytes(b"".join(map(encoded, commands)))
    return OlderData(directory, expected)


def commands_of(data: bytes) -> Iterator[list[bytes]]:
    """The commands of an append-only file without an RDB preamble."""
    place = 0

    def number(prefix: bytes) -> int:
        nonlocal place
        assert data[place : place + 1] == prefix, data[place : place + 20]
        end = data.index(b"\r\n", place)
        value, place = int(data[place + 1 : end]), end + 2
        return value

    while place < len(data):
        words = []
        for _ in range(number(b"*")):
            size = number(b"$")
            words.append(data[place : place + size])
            place += size + 2
        yield words


def encoded(command: list[bytes]) -> bytes:
    words = [b"$%d\r\n%s\r\n" % (len(word), word) for word in command]
    return b"*%d\r\n%s" % (len(command), b"".join(words))


def moved(command: list[bytes], passed_ms: int) -> list[bytes]:
    """The same command, with what it says of an expiry, or of a run's beginning, so much later.

    An answer may only take so long. Leases stay: they have ended, and nobody waits for that.
    """

    def later(place: int) -> None:
        command[place] = b"%d" % (int(command[place]) + passed_ms)

    name = command[0].upper()
    if name == b"PEXPIREAT":
        later(2)
    fields = {b"PXAT"} if name == b"SET" else {b"expires_at"}
    if b"}:r:" in command[min(1, len(command) - 1)]:
        fields |= {b"created_at", b"started_at", b"first_token_at"}
    for place, word in enumerate(command[:-1]):
        if word in fields and command[place + 1]:
            later(place + 1)
    return command
