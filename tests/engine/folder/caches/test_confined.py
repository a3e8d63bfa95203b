"""What of a cache may be used: our own regular files in it, and nothing that a link leads to."""

import os
from pathlib import Path

import pytest

from engine.folder.caches.confined import Cache


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> Cache:
    (tmp_path / "cache" / "in").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("of somebody")
    (tmp_path / "cache" / "in" / "file").write_text("a model")
    cache = Cache.open(tmp_path / "cache", notes)
    assert cache is not None
    return cache


def test_only_own_regular_files_of_the_cache_are_used(cache: Cache, notes: list[str]) -> None:
    root, folder = cache.root, cache.root / "in"
    (folder / "link").symlink_to("../in/file")
    (folder / "out").symlink_to("../../outside/file")
    (folder / "through").symlink_to("../other/file")
    (root / "other").symlink_to("../outside")
    (folder / "nothing").symlink_to("missing")
    (folder / "circle").symlink_to("circle")
    (folder / "device").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    assert cache.files(folder) == {"file": folder / "file", "link": folder / "file"}
    left_out = {Path(note.partition(" is left out: ")[0]).name for note in notes}
    assert left_out == {"out", "through", "nothing", "circle", "device", "pipe"}
    assert cache.files(root / "other") == {}
    assert cache.names(root / ".." / "outside") == []


def test_files_of_another_user_are_left_out(
    cache: Cache, notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert cache.file(cache.root / "in" / "file") is None
    assert notes == [f"{cache.root}/in/file is left out: it belongs to another user"]
    assert Cache.open(tmp_path / "cache", notes) is None
    assert notes[1:] == [f"{tmp_path}/cache belongs to another user, and is left out"]


def test_a_cache_may_itself_be_a_link(cache: Cache, notes: list[str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("cache")
    linked = Cache.open(tmp_path / "link", notes)
    assert linked is not None
    assert list(linked.files(linked.root / "in")) == ["file"]


def test_no_folder_is_no_cache(tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    assert Cache.open(tmp_path / "missing", notes) is None
    assert Cache.open(tmp_path / "file", notes) is None
    assert notes == []
    assert Cache.open(tmp_path / "circle", notes) is None
    assert len(notes) == 1
