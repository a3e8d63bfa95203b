"""The builder: built once, found again, absent without a compiler."""

import ctypes
import logging
import os
from pathlib import Path

import pytest

from csrc import build


def test_without_a_compiler_there_is_one_warning_and_no_library(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.build() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "no C++ compiler" in record.message


def test_a_failing_compiler_is_a_warning_with_its_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'no such instruction' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "find_compiler", lambda: str(compiler))
    monkeypatch.setattr(build, "_cache_folder", lambda: tmp_path / "cache")
    assert build.build() is None
    assert "no such instruction" in caplog.records[-1].message
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.fixture
def compiler() -> str:
    """Parley runs without one, on references, and then there is nothing to build."""
    found = build.find_compiler()
    if found is None:
        pytest.skip("no C++ compiler: nothing can be built")
    return found


def test_an_existing_library_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str
) -> None:
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, library: library.touch())
    first = build.build_in(tmp_path, compiler)
    first.write_text("as it was")
    # A checkout may be moved, and with it the environment that torch is in.
    monkeypatch.setattr(build, "_torch_flags", lambda: ["-I/elsewhere"])
    assert build.build_in(tmp_path, compiler) == first
    assert first.read_text() == "as it was"


def test_other_flags_give_another_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str
) -> None:
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, library: library.touch())
    first = build.build_in(tmp_path, compiler)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    assert build.build_in(tmp_path, compiler) != first


def test_units_of_one_name_in_two_folders_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str
) -> None:
    sources = tmp_path / "sources"
    for name in ("cpu", "cuda"):
        (sources / name).mkdir(parents=True)
        unit = f'extern "C" __attribute__((visibility("default"))) int on_{name}() {{ return 1; }}'
        (sources / name / "attention.cpp").write_text(unit)
    monkeypatch.setattr(build, "SOURCES", sources)
    library = build.build_in(tmp_path / "built", compiler)
    both = ctypes.CDLL(str(library))
    assert both.on_cpu() == both.on_cuda() == 1
    (sources / "cuda").rename(sources / "rocm")
    assert build._digest(compiler) not in library.name


def test_a_read_only_checkout_builds_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._cache_folder() == tmp_path / "parley"
