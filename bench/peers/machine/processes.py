"""Servers as processes: started in a session of their own, waited for, stopped with their children.

Also what they cost: the processor time of a tree of processes, finely enough to see a stop.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from bench.peers.machine.environments import Unavailable, reason

STOP_SECONDS = 15.0  # between a polite request to end and SIGKILL
POLL_SECONDS = 0.2
SAMPLE_SECONDS = 0.002
QUIET_SECONDS = 0.02  # a window in which a server that has stopped does next to nothing
CPUCLOCK_SCHED = 2  # of Linux (include/linux/posix-timers.h): time on a processor
QUIET_CORES = 0.25  # more than at rest in that window is still work


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    url: str,
    log: Path,
    seconds: float,
) -> Iterator[int]:
    """A server that answers at `url`; its process id. Raises `Unavailable` if it never does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            process_group=0,  # a session would be a group of the scheduler, with a share of its own
        )
    try:
        await_answer(name, process, url, log, seconds)
        yield process.pid
    finally:
        stop(process)


def await_answer(
    name: str, process: subprocess.Popen[bytes], url: str, log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = reason(log.read_text(errors="replace"))
            died = process.returncode == -signal.SIGILL
            why = "it needs instructions that this processor lacks" if died else said
            raise Unavailable(f"{name} ended with {process.returncode}: {why} ({log})")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(POLL_SECONDS)  # another project's server: only an answer shows it
    raise Unavailable(f"{name} did not answer within {seconds:.0f} s ({log})")


def tree(pid: int) -> list[psutil.Process]:
    """The process and all below it."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it, and all that it has started."""
    members = tree(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(members, timeout=STOP_SECONDS)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


# ---- what they cost -----------------------------------------------------------------------------


def busy_seconds(pids: Sequence[int]) -> float:
    """Processor time of all their threads, to the nanosecond, and for nearly nothing.

    To read files of /proc for each thread every 2 ms takes so much of a core that a step of the
    server takes half as long again.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            total += time.clock_gettime(_clock_of(pid))
    return total


def _clock_of(pid: int) -> int:
    """What clock_getcpuclockid(3) gives, which Python has only for threads of its own."""
    return (~pid << 3) | CPUCLOCK_SCHED


def machine_busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


class Foreign:
    """Cores that were busy with neither the server nor this program: noise in what was measured."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.cores = 0.0

    def _own(self) -> float:
        return busy_seconds([p.pid for p in tree(self._pid)]) + time.process_time()

    def __enter__(self) -> "Foreign":
        self._started = time.monotonic()
        self._machine, self._mine = machine_busy_seconds(), self._own()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._started
        others = machine_busy_seconds() - self._machine - (self._own() - self._mine)
        self.cores = max(0.0, others) / seconds


async def sample_busy(pids: Sequence[int], seconds: float) -> list[tuple[float, float]]:
    """Pairs of the clock and the processor time until then."""
    samples = []
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        samples.append((now, busy_seconds(pids)))
        await asyncio.sleep(SAMPLE_SECONDS)
    return samples


def busy_cores(samples: Sequence[tuple[float, float]]) -> float:
    (start, before), (end, after) = samples[0], samples[-1]
    return (after - before) / (end - start)


def quiet_after(
    samples: Sequence[tuple[float, float]], idle_cores: float, window: float = QUIET_SECONDS
) -> float | None:
    """Seconds from the first sample until nothing is at work; None if it never ends.

    Nothing is at work where a whole window holds hardly more than rest does.
    """
    origin = samples[0][0]
    end = 0
    for start, before in samples:
        while end < len(samples) and samples[end][0] < start + window:
            end += 1
        if end == len(samples):
            return None
        at, after = samples[end]
        if (after - before) / (at - start) <= idle_cores + QUIET_CORES:
            return start - origin
    return None
