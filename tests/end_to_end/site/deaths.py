"""How a whole `parley serve` can end without having been asked to, or being asked twice."""

import asyncio
import signal

import psutil

from tests.end_to_end.site.harness import Server
from tests.helpers.redis_topology import wait_for


def is_running(process: psutil.Process) -> bool:
    """Not gone, nor dead and waiting for init to notice."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def gone(family: list[psutil.Process]) -> None:
    """Wait until none of them runs; raises AssertionError after five seconds."""
    await asyncio.to_thread(wait_for, lambda: not any(map(is_running, family)), 5.0)


async def supervisor_is_killed(server: Server) -> None:
    """It alone; all that it had started ends by itself."""
    assert server.process is not None
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    await gone(family)


async def everything_is_killed(server: Server) -> None:
    assert server.process is not None
    family = [psutil.Process(server.process.pid)]
    family += family[0].children(recursive=True)
    for process in family:
        process.kill()
    await gone(family)


async def supervisor_gets_two_signals(server: Server) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)  # two signals at once may be seen as one
    server.process.send_signal(signal.SIGTERM)
