"""axe-core is fetched once, and no other package in its place."""

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.end_to_end.looks import axe as module
from tests.end_to_end.looks.axe import NAME, Unavailable, axe_source


def package(script: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        member = tarfile.TarInfo("package/axe.min.js")
        member.size = len(script)
        archive.addfile(member, io.BytesIO(script))
    return written.getvalue()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package in a registry of the test's own."""
    file = tmp_path / "registry" / "axe-core" / "-" / NAME
    file.parent.mkdir(parents=True)
    file.write_bytes(package(b"axe = {}"))
    digest = hashlib.sha512(file.read_bytes()).digest()
    monkeypatch.setattr(module, "INTEGRITY", base64.b64encode(digest).decode())
    monkeypatch.setenv("npm_config_registry", f"file://{tmp_path}/registry/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return file


def test_it_is_fetched_once_and_again_only_when_the_copy_is_damaged(published: Path) -> None:
    assert axe_source() == "axe = {}"
    kept = published.rename(published.with_suffix(".away"))
    assert axe_source() == "axe = {}"
    (copy,) = (published.parents[3] / "cache").rglob(NAME)
    copy.write_bytes(b"damaged")
    with pytest.raises(Unavailable, match=r"^axe-core-.* is not to be had from file:"):
        axe_source()
    kept.rename(published)
    assert axe_source() == "axe = {}"


def test_another_package_of_that_name_is_refused(published: Path) -> None:
    published.write_bytes(package(b"steal()"))
    with pytest.raises(ValueError, match="its SHA-512 differs"):
        axe_source()
