"""A failure is told, also one whose report cannot be made or sent to another process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.root import ROOT

pytestmark = pytest.mark.slow

CONFTEST = """
import pytest
from tests.failure_reports import FailureReports

def pytest_configure(config):
    config.pluginmanager.register(Broken())
    config.pluginmanager.register(FailureReports())

class Broken:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed and item.name == "test_report":
            raise SystemError
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logfinish(self, nodeid):
        yield
        if nodeid.endswith("test_error"):
            raise ValueError
"""
PLAIN = """
def test_plain(): raise OSError("the plain one")
"""
ODD = """
def test_report(): raise OSError("the odd one")
def test_text(): raise OSError("half a \\ud800 pair")
"""
BROKEN = """
def test_error(): pass
"""


@pytest.mark.parametrize(
    ("sources", "status", "told"),
    [
        ([PLAIN, ODD], 1, ["the plain one", "the odd one", "half a ? pair", "3 failed"]),
        ([PLAIN + BROKEN], 3, ["failed before this error:\ntest_0.py::test_plain (call)"]),
    ],
)
def test_each_failure_is_among_the_last_lines(
    tmp_path: Path, sources: list[str], status: int, told: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number, source in enumerate(sources):
        (tmp_path / f"test_{number}.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-n1", "-p", "no:randomly", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", ".", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == status
    assert [words for words in told if words not in ended.stdout] == []
