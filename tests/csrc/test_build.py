"""The builder: built once, found again, absent without a compiler."""

import ctypes
import dataclasses
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
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "cache")
    assert build.build() is None
    assert "no such instruction" in caplog.records[-1].message
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.fixture
def recipe() -> build.Recipe:
    """Of the CPU's library. Parley runs without a compiler, and then there is nothing to build."""
    compiler = build.find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler: nothing can be built")
    return build.cpu_recipe(compiler)


def test_an_existing_library_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: build.Recipe
) -> None:
    monkeypatch.setattr(build, "_compile", lambda recipe, library: library.touch())
    first = build.build_in(tmp_path, recipe)
    first.write_text("as it was")
    # A checkout may be moved, and with it the environment that torch is in.
    monkeypatch.setattr(build, "_torch_folder", lambda: Path("/elsewhere"))
    assert build.build_in(tmp_path, recipe) == first
    assert first.read_text() == "as it was"


def test_other_flags_give_another_library(recipe: build.Recipe) -> None:
    other = dataclasses.replace(recipe, flags=(*recipe.flags, "-DOTHER"))
    assert build.digest(other) != build.digest(recipe)


def test_a_library_is_made_of_all_units_below_its_folder_and_of_no_other(
    tmp_path: Path, recipe: build.Recipe
) -> None:
    for folder in ("here/below", "there", "headers"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("here/one", "here/two", "here/below/one", "there/one"):
        unit, folder = Path(name).name, Path(name).parent.name
        function = f'extern "C" __attribute__((visibility("default"))) int {unit}_of_{folder}()'
        (tmp_path / f"{name}.cpp").write_text(
            f'#include "number.h"\n{function} {{ return kNumber; }}'
        )
    header = tmp_path / "headers" / "number.h"
    header.write_text("constexpr int kNumber = 1;")
    own = dataclasses.replace(recipe, folder=tmp_path / "here", include=(tmp_path / "headers",))
    path = build.build_in(tmp_path / "built", own)
    library = ctypes.CDLL(str(path))
    assert library.one_of_here() == library.two_of_here() == library.one_of_below() == 1
    assert not hasattr(library, "one_of_there")
    (tmp_path / "there" / "one.cpp").unlink()
    assert build.digest(own) in path.name
    header.write_text("constexpr int kNumber = 2;")
    assert build.digest(own) not in path.name


def test_a_source_that_moves_within_its_folder_gives_another_library(
    tmp_path: Path, recipe: build.Recipe
) -> None:
    (tmp_path / "below").mkdir()
    unit = tmp_path / "one.cpp"
    unit.write_text("int one() { return 1; }")
    own = dataclasses.replace(recipe, folder=tmp_path)
    before = build.digest(own)
    unit.rename(tmp_path / "below" / "one.cpp")
    assert build.digest(own) != before


def test_a_read_only_checkout_builds_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "parley"


def test_what_was_built_in_an_image_is_used_though_the_image_is_read_only_by_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: build.Recipe
) -> None:
    monkeypatch.setattr(build, "SOURCES", tmp_path / "image" / "csrc")
    monkeypatch.setattr(build, "_compile", lambda recipe, library: library.touch())
    shipped = build.build_in(tmp_path / "image" / "build", recipe)
    monkeypatch.setattr(build, "find_compiler", lambda: recipe.compiler)
    monkeypatch.setattr(build, "cpu_recipe", lambda compiler: recipe)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build.build() == shipped
    shipped.unlink()
    assert build.build() == tmp_path / "cache" / "parley" / shipped.name


# ---- kernels of GPUs -----------------------------------------------------------------------------

PTXAS = """
ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function '_Z5firstv' for 'sm_80'
ptxas info    : Function properties for _Z5firstv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 12.3 ms
ptxas info    : Compiling entry function '_Z6secondv' for 'sm_90'
ptxas info    : Function properties for _Z6secondv
    24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 24 bytes cumulative stack size
"""


def test_what_a_kernel_takes_is_read_from_what_ptxas_says() -> None:
    first, second = build.read_kernel_uses(PTXAS)
    assert first == build.KernelUse("sm_80", "_Z5firstv", 40, 2048, 0)
    assert second == build.KernelUse("sm_90", "_Z6secondv", 255, 0, 24)


def test_without_nvcc_the_command_says_that_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert build.main(["cuda"]) == 0
    assert "skipped: no nvcc" in capsys.readouterr().out
    assert build.build_cuda() is None


@pytest.mark.slow
@pytest.mark.skipif(build.find_cuda_compiler() is None, reason="no nvcc: nothing to compile with")
def test_all_cuda_kernels_compile_and_none_spills(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert build.main(["cuda"]) == 0
    said = capsys.readouterr().out
    assert "sm_80" in said and "sm_90" in said
