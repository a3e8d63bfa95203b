"""The order of the files, the slow ones first, so that the processes of a run end together; and
`--part` and `--row`, which choose among the tests by the marks `slow` and `row`.
"""

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.failure_reports import FailureReports
from tests.slow_parts import PARTS, part_of

# Hundreds of processes of a run import the same modules: what the first has compiled is kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Threads of torch wait awake, by default for milliseconds in which the other process could run.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

SLOW_FIRST = ("end_to_end", "compat")  # folders; each of their files starts servers or programs
TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=sorted(set(PARTS.values())), help="of the slow tests")
    parser.addoption("--renew-looks", action="store_true", help="take the pictures of pages anew")
    parser.addoption("--row", help="of docs/reliability.md, such as E1: the tests that show it")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FailureReports())
    if config.getoption("--row") is not None:
        config.option.markexpr = ""  # some rows are shown by slow tests alone


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: looking for garbage there, ever again, takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Called after pytest-randomly, whose order within these groups stays."""
    items.sort(key=lambda item: not set(SLOW_FIRST) & set(item.path.parts))
    parts = {
        item: part_of(item.path.relative_to(TESTS), item.name.partition("[")[2])
        for item in items
        if item.get_closest_marker("slow") is not None
    }
    if (wanted := config.getoption("--part")) is not None:
        _keep(config, items, [item for item in items if parts.get(item) == wanted])
    if (row := config.getoption("--row")) is not None:
        _keep(config, items, [item for item in items if row in _rows(item)])


def _rows(item: pytest.Item) -> set[str]:
    return {code for mark in item.iter_markers("row") for code in mark.args}


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    others = set(items) - set(kept)
    items[:] = kept
    config.hook.pytest_deselected(items=list(others))
