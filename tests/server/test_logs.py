"""Logs: a stream that takes no more of them is no reason to stop."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.harness import ROOT

SPEAK = """
from server.logs import configure_logs
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


def test_s7_a_log_that_takes_nothing_stops_nothing(broken_stream: int) -> None:
    command = [sys.executable, "-c", SPEAK]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=broken_stream, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, b"serves on\n")


def test_what_is_logged_comes_at_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        subprocess.run(
            [sys.executable, "-c", SPEAK],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            timeout=30,
            check=True,
        )
    lines = path.read_text().splitlines()
    assert len(lines) == 1003
    assert lines[-1] == "serves on"
    assert '"number": 999' in lines[999]
