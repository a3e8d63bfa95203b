"""What processes take while nobody says anything, and what open sockets add to it."""

from __future__ import annotations

import asyncio

from bench.capacity.parts import CORE, MIB, REDIS, SUPERVISOR, TEMPLATES, WORKER, Parts, Stopwatch
from bench.capacity.visitors import arrive, leave
from bench.harness.report import Figure
from tests.end_to_end.site.harness import Server

REST_SECONDS = 20.0  # the interval of pings


async def at_rest(server: Server, num_sockets: int) -> list[Figure]:
    """Memory and processor time of each process; then the same with so many sockets."""
    parts = Parts.of(server)
    await asyncio.sleep(2.0)  # what the start left is collected
    alone = await _rest(parts)
    memory = {part: parts.fair_bytes(part) for part in parts.processes}
    before = parts.own_bytes(WORKER)
    visitors = await arrive(server, server.redis_url, num_sockets, with_sessions=True)
    await asyncio.sleep(2.0)  # what their coming left is collected
    grown = parts.own_bytes(WORKER) - before
    beside = await _rest(parts)
    leave(visitors)
    figures = [
        Figure(f"memory: {part}", memory[part] / MIB, None, "MiB")
        for part in (SUPERVISOR, WORKER, TEMPLATES, CORE, REDIS)
    ]
    for part in (SUPERVISOR, WORKER, REDIS):
        figures.append(Figure(f"at rest: {part}", alone[part] * 1e3, None, "ms/s"))
    figures.append(Figure("a socket: worker's memory", grown / num_sockets / 1024, None, "KiB"))
    for part in (WORKER, REDIS):
        added = (beside[part] - alone[part]) / num_sockets * 1e6
        figures.append(Figure(f"a socket at rest: {part}", added, None, "µs/s"))
    return figures


async def _rest(parts: Parts) -> dict[str, float]:
    """Processor time of each part in a second in which nobody says anything."""
    watch = Stopwatch(parts)
    await asyncio.sleep(REST_SECONDS)
    return {part: seconds / REST_SECONDS for part, seconds in watch.elapsed().items()}
