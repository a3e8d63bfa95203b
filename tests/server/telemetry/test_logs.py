"""Logs: a stream that takes no more of them is no reason to stop."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

SPEAK = """
from server.telemetry.logs import configure_logs
configure_logs("info", "json", "worker-1")
import logging, structlog
from rich.console import Console
for number in range(1000):
    structlog.get_logger("server").info("response created", number=number)
logging.getLogger("uvicorn").warning("of a library")
Console(stderr=True).print("stopping")
print("serves on")
"""


@pytest.fixture(params=["reader gone", "disk full"])
def broken_stream(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor that takes nothing."""
    if request.param == "disk full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


@pytest.mark.row("S7")
def test_a_log_that_is_full_or_unread_stops_nothing(broken_stream: int) -> None:
    command = [sys.executable, "-c", SPEAK]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=broken_stream, timeout=PATIENCE
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["event"] == "serves on"


def test_what_is_logged_comes_at_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        subprocess.run(
            [sys.executable, "-c", SPEAK],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            timeout=PATIENCE,
            check=True,
        )
    lines = path.read_text().splitlines()
    assert len(lines) == 1003
    assert json.loads(lines[-1])["event"] == "serves on"
    assert '"number": 999' in lines[999]


FAIL = """
import sys
from server.telemetry.logs import configure_logs
configure_logs("info", sys.argv[1], "worker-1")
import structlog
def fail(words):
    raise ValueError("the reason")
try:
    fail("what a user wrote")
except ValueError:
    structlog.get_logger("server").exception("run failed")
"""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_an_exception_is_logged_with_its_place_and_no_local_variables(log_format: str) -> None:
    command = [sys.executable, "-c", FAIL, log_format]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "run failed" in done.stderr
    assert "the reason" in done.stderr
    assert '"fail"' in done.stderr or "in fail" in done.stderr
    assert "a user wrote" not in done.stderr.replace('fail("what a user wrote")', "")


def test_a_level_that_changes_holds_for_loggers_that_are_there() -> None:
    """Each line says what the level was when it was asked for."""
    code = """
import structlog
from server.telemetry.logs import configure_logs, log_level, set_log_level
configure_logs("info", "json", "worker-1")
logger = structlog.get_logger("server")
for level in ("info", "debug", "error", "loud", "warning"):
    set_log_level(level)
    logger.debug("d", at=level)
    logger.info("i", at=level)
    logger.warning("w", at=level)
    logger.error("e", at=level)
    assert log_level() == ("error" if level == "loud" else level)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stderr.splitlines()]
    by_level = {level: "" for level in ("info", "debug", "error", "loud", "warning")}
    for line in said:
        by_level[line["at"]] += line["event"]
    assert by_level == {"info": "iwe", "debug": "diwe", "error": "e", "loud": "e", "warning": "we"}


SMALL = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
from server.telemetry.logs import Losses, configure_logs
configure_logs("info", sys.argv[1], "worker-1")
import structlog
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for number in range(20):
    structlog.get_logger("server").info("response created", number=number)
lost = Losses.now
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
structlog.get_logger("server").info("there is room again", lost=lost, now=Losses.now)
print(lost, Losses.now, Losses.total)
"""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_log_says_how_many_lines_it_has_lost_when_it_takes_some_again(
    tmp_path: Path, log_format: str
) -> None:
    path = tmp_path / "log"
    with path.open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-c", SMALL, log_format],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=PATIENCE,
            check=True,
        )
    said = done.stdout.decode().split("\n")[0 if log_format == "text" else -2]
    lost, now, total = map(int, (json.loads(said)["event"] if "{" in said else said).split())
    assert 5 < lost == total and now == 0
    *_, _cut, told, last = path.read_text().splitlines()
    assert f"{lost} lines of this log are lost" in told and "there is room again" in last
    assert "response created" not in told
    if log_format == "json":
        assert json.loads(told)["level"] == "warning" and json.loads(last)["lost"] == lost
