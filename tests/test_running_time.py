"""The clock of tests stands still while the machine does."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.root import ROOT
from tests.helpers.running_time import running_time

pytestmark = pytest.mark.slow

STOPPED_SECONDS = 0.5

# Reads both clocks, is stopped and continued from outside, and reads them again.
CHILD = """
import os, signal, time
from tests.helpers.running_time import running_time
began, ran = time.monotonic(), running_time()
os.kill(os.getpid(), signal.SIGSTOP)
while time.monotonic() - began < 2 * {stopped}:
    pass
print(time.monotonic() - began, running_time() - ran)
"""


def test_it_runs_as_long_as_the_machine_does() -> None:
    began, ran = time.monotonic(), running_time()
    while time.monotonic() - began < 0.2:
        pass
    assert running_time() - ran <= time.monotonic() - began


def test_it_leaves_out_what_the_process_stood_still() -> None:
    source = CHILD.format(stopped=STOPPED_SECONDS)
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = time.monotonic()
        while time.monotonic() - stopped < STOPPED_SECONDS:
            pass
        child.send_signal(signal.SIGCONT)
        assert child.stdout is not None
        passed, ran = map(float, child.stdout.read().split())
    assert passed >= 2 * STOPPED_SECONDS
    assert ran <= passed - STOPPED_SECONDS
