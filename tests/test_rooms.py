"""No modules import each other in a circle, and no folder has more files than one takes in."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import grimp
import pytest

from tests.helpers.root import ROOT

PACKAGES = ("server", "sessions", "engine", "csrc", "bench")
MAX_FILES = 12  # beside `__init__.py`, which holds a docstring
ROOMY = (*PACKAGES, "static/js", "static/css", "tests", "docs")
LIBRARIES = ("csrc/cpu", "csrc/cuda")  # their files include each other from here
FLAT = (  # what is kept, not code
    "tests/upgrades/data-0.1.0",
    "tests/end_to_end/looks/references",
    "bench/results",
)


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """Modules that import each other in a circle, or something that is in one."""
    left = dict(imports)
    while leaves := [module for module, others in left.items() if not others & left.keys()]:
        for module in leaves:
            del left[module]
    return set(left)


def test_a_circle_is_found() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph(*PACKAGES)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert in_circles(imports) == set()


def imported_folders(top: Path) -> dict[str, set[str]]:
    """Of each folder below `top` the others there whose modules it imports."""
    folders: defaultdict[str, set[str]] = defaultdict(set)
    name = ".".join(top.relative_to(ROOT).parts)
    imported = re.compile(rf"^ *from {name}\.(\w+)[. ]", re.M)
    for path in top.rglob("*.py"):
        folder = path.parent.relative_to(top).as_posix()
        if path.name != "conftest.py":  # it stands above all folders, and imports of each
            folders[folder].update(imported.findall(path.read_text()))
            folders[folder].discard(folder)
    return folders


def test_no_folders_of_end_to_end_tests_import_each_other_in_a_circle() -> None:
    folders = imported_folders(ROOT / "tests" / "end_to_end")
    assert "frames" in folders["oracle"]
    assert in_circles(folders) == set()


def test_no_modules_of_the_page_import_each_other_in_a_circle() -> None:
    imports = {
        path: {(path.parent / name).resolve() for name in re.findall(r'from "(\.[^"]+)"', text)}
        for path in (ROOT / "static" / "js").rglob("*.js")
        if (text := path.read_text())
    }
    assert any(imports.values())
    assert (
        in_circles({str(path): set(map(str, others)) for path, others in imports.items()}) == set()
    )


def included_folders(library: Path) -> dict[str, set[str]]:
    """Of each folder of C++ the other folders that it includes files of."""
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for path in library.rglob("*.*"):
        folder = path.parent.relative_to(library).as_posix()
        for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.M):
            assert (library / name).is_file(), f"{path} includes {name}"
            folders[folder].add(Path(name).parent.as_posix())
        folders[folder].discard(folder)
    return folders


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_folders_of_kernels_include_each_other_in_a_circle(library: str) -> None:
    folders = included_folders(ROOT / library)
    assert "common" in folders["attention"]
    assert in_circles(folders) == set()


@pytest.mark.parametrize("top", ROOMY)
def test_no_folder_has_more_than_twelve_files(top: str) -> None:
    files = [path for path in (ROOT / top).rglob("*.*") if path.is_file()]
    counts = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in files
        if path.name != "__init__.py" and path.parent.name != "__pycache__"
    )
    assert counts
    assert {folder for folder, number in counts.items() if number > MAX_FILES} <= set(FLAT)
