"""The team of threads: where they run, and what is left of it when one cannot be started.

Each test asks in a process of its own, because a team is made once and stays.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.built_kernels import needs_kernels

pytestmark = needs_kernels


def run(program: str) -> str:
    """What a program prints that has `model`, and `step(num_threads)` for its logits."""
    beginning = """
import os, resource, torch
from engine.core.ops import library as ops
from tests.csrc.test_decoder import STEPS, Model

model = Model("float32")

def step(num_threads):
    torch.set_num_threads(num_threads)
    return model.run("cpu", *STEPS)

def threads():
    return set(map(int, os.listdir("/proc/self/task")))

expected = step(1)
"""
    command = [sys.executable, "-c", beginning + program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_thread_that_cannot_be_started_is_an_error_and_the_others_end() -> None:
    """There is room for the stacks of some threads, and not of all."""
    output = run("""
before = threads()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 20 * 2**20, resource.RLIM_INFINITY))
try:
    step(12)
except RuntimeError as error:
    print(error)
assert threads() == before
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert torch.equal(step(12), expected)
assert len(threads() - before) == 11
""")
    assert " of 12 could not be started: " in output


# Other systems than Linux have no call to ask or pin by; the team runs unpinned there.
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not Linux")
def test_helpers_are_pinned_only_where_the_team_has_all_processors() -> None:
    output = run("""
allowed = os.sched_getaffinity(0)
for num_threads in (len(allowed), len(allowed) + 1):
    before = threads()
    step(num_threads)
    print([len(os.sched_getaffinity(thread)) for thread in threads() - before])
print(len(allowed))
""")
    whole, larger, count = map(json.loads, output.splitlines())
    assert whole == [1] * (count - 1)
    assert larger == [count] * count


@pytest.mark.slow
def test_threads_that_come_late_change_nothing() -> None:
    """Of more threads than processors some are away in most phases, and at the end of steps."""
    run("""
for num_threads in (2, 3, 8, 2 * os.cpu_count() + 1):
    for _ in range(40):
        assert torch.equal(step(num_threads), expected)
""")
