"""What a running answer takes: of the worker and of Redis, of which there may be a cluster."""

from __future__ import annotations

import asyncio

from bench.capacity.parts import REDIS, WORKER, Parts, Stopwatch
from bench.capacity.visitors import arrive, leave
from bench.harness.report import Figure
from tests.end_to_end.site.harness import Server
from tests.helpers.redis_topology import RedisCluster

WARM_SECONDS = 5.0  # until all answers are past the tokens that are parts of characters
SECONDS = 20.0
LATE_SECONDS = 15.0  # that a busy machine may take longer
TOKENS = "parley_generation_tokens_total"
MEASURED = (WORKER, REDIS)


async def running_streams(
    server: Server, num_streams: int, rate: float, cluster: RedisCluster | None = None
) -> list[Figure]:
    """So many answers at so many tokens/s: the memory of each, and processor time of a token.

    All nodes of a cluster are counted together; what they take without any answer is not.
    """
    parts = Parts.of(server, cluster)
    redis_url = server.redis_url if cluster is None else cluster.url
    visitors = await arrive(server, redis_url, num_streams, with_sessions=True)
    await asyncio.gather(*(visitor.answer(1) for visitor in visitors))
    rest = await _used_in(parts, SECONDS)
    own = {part: parts.own_bytes(part) for part in MEASURED}
    num_tokens = int((WARM_SECONDS + SECONDS + LATE_SECONDS) * rate)
    responses = await asyncio.gather(*(visitor.ask(num_tokens) for visitor in visitors))
    await asyncio.sleep(WARM_SECONDS)
    counted = await asyncio.to_thread(server.metric, TOKENS)
    used = await _used_in(parts, SECONDS)
    seen = await asyncio.to_thread(server.metric, TOKENS) - counted
    grown = {part: parts.own_bytes(part) - own[part] for part in MEASURED}
    for visitor, response in zip(visitors, responses, strict=True):
        visitor.socket.send("stop", response_id=response)
        await visitor.socket.next("response.done")
    leave(visitors)
    where = f"{num_streams} streams of {seen / SECONDS / num_streams:.0f} tokens/s"
    if cluster is not None:
        where = f"a cluster of {len(cluster.servers)}, {where}"
    sizes = [] if cluster is not None else list(grown.items())
    return [
        *(
            Figure(f"a stream's memory: {part}, {where}", size / num_streams / 1024, None, "KiB")
            for part, size in sizes
        ),
        *(
            Figure(f"a token: {part}, {where}", (used[part] - rest[part]) / seen * 1e6, None, "µs")
            for part in MEASURED
        ),
    ]


async def _used_in(parts: Parts, seconds: float) -> dict[str, float]:
    """Processor time of the parts in so many seconds from now."""
    watch = Stopwatch(parts)
    await asyncio.sleep(seconds)
    return watch.elapsed()
