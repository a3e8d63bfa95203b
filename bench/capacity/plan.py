"""What measured costs add up to: how many workers and Redis a service needs.

Only sums. A worker and a Redis use one processor each, no more than `BUSY` of it, so that bursts
and a neighbour's death have room. docs/deployment/capacity.md shows the results, which
`python -m bench.capacity.plan` prints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

BUSY = 0.6  # of a processor, and of a Redis' memory
REDIS_GIB = 32  # of memory, of which a rewrite of its file may take as much as is written meanwhile
RECENT_SECONDS = 600  # for which Redis keeps an answer's log, and its token ids, after its end
LOG_SECONDS = 3600  # and a session's log after its last use
KIB = 2**20  # of a GiB


@dataclass(frozen=True, slots=True)
class Costs:
    """As `python -m bench.capacity` prints them."""

    worker_mib: float  # with its child for templates
    worker_rest_ms: float  # of processor time in a second
    worker_redis_ms: float  # which Redis takes for a worker at rest
    socket_kib: float
    socket_us: float  # in a second
    socket_redis_us: float
    answer_ms: float
    answer_redis_ms: float
    token_us: float
    token_redis_us: float
    stream_kib: float
    session_kib: float  # beside its text
    character_bytes: float
    log_kib: float  # of a session, for `LOG_SECONDS`
    answer_kib: float  # in Redis, for `RECENT_SECONDS`
    cluster_us: float  # of a token, all nodes together, but for
    cluster_node_us: float  # what each of the nodes takes, also without the session


MEASURED = Costs(  # on one processor of an AMD EPYC (Zen 4), as docs/deployment/capacity.md says
    worker_mib=70.0,
    worker_rest_ms=5.3,
    worker_redis_ms=2.3,
    socket_kib=18.0,
    socket_us=20.0,
    socket_redis_us=5.0,
    answer_ms=4.4,
    answer_redis_ms=1.3,
    token_us=70.0,
    token_redis_us=25.0,
    stream_kib=144.0,
    session_kib=5.1,
    character_bytes=1.03,
    log_kib=9.2,
    answer_kib=5.8,
    cluster_us=32.0,
    cluster_node_us=9.0,
)


@dataclass(frozen=True, slots=True)
class Need:
    """What users do, at the busiest moment."""

    sessions: int = 0  # that are kept
    characters: int = 4000  # in each
    sockets: int = 0
    streams: int = 0
    rate: float = 30.0  # tokens/s of each
    answer_tokens: int = 300

    @property
    def tokens(self) -> float:
        """In a second, of all."""
        return self.streams * self.rate

    @property
    def answers(self) -> float:
        """That begin and end in a second."""
        return self.tokens / self.answer_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """Processors are those that are used."""

    worker_processors: float
    workers: int
    worker_gib: float
    redis_processors: float
    redis_gib: float
    primaries: int  # each a Redis of its own, with its own workers


def plan(costs: Costs, need: Need) -> Plan:
    """What serves a need; workers, and Redis, are as many as `BUSY` wants."""
    used = (
        need.tokens * costs.token_us / 1e6
        + need.answers * costs.answer_ms / 1e3
        + need.sockets * costs.socket_us / 1e6
    )
    workers = max(1, math.ceil(used / (BUSY - costs.worker_rest_ms / 1e3)))
    redis = (
        need.tokens * costs.token_redis_us / 1e6
        + need.answers * costs.answer_redis_ms / 1e3
        + need.sockets * costs.socket_redis_us / 1e6
        + workers * costs.worker_redis_ms / 1e3
    )
    session_kib = costs.session_kib + need.characters * costs.character_bytes / 1024
    recent = need.answers * RECENT_SECONDS + need.streams
    logs = min(need.sessions, need.answers * LOG_SECONDS)
    kept = need.sessions * session_kib + logs * costs.log_kib + recent * costs.answer_kib
    gib = kept / KIB
    primaries = max(1, math.ceil(redis / BUSY), math.ceil(gib / (BUSY * REDIS_GIB)))
    resident = workers * costs.worker_mib * 1024 + need.sockets * costs.socket_kib
    return Plan(
        worker_processors=used + workers * costs.worker_rest_ms / 1e3,
        workers=workers,
        worker_gib=(resident + need.streams * costs.stream_kib) / KIB,
        redis_processors=redis,
        redis_gib=gib,
        primaries=primaries,
    )


def cluster_tokens(costs: Costs, num_nodes: int) -> float:
    """Tokens in a second that a cluster of so many primaries carries."""
    each = costs.cluster_us + num_nodes * costs.cluster_node_us
    return num_nodes * BUSY / each * 1e6


SLOW = 10.0  # tokens/s, faster than most people read
NEEDS = (
    Need(sessions=10_000, sockets=1_000, streams=50),
    Need(sessions=100_000, sockets=10_000, streams=1_000),
    Need(sessions=1_000_000, sockets=30_000, streams=3_000),
    Need(sessions=1_000_000, sockets=100_000, streams=10_000),
    Need(sessions=1_000_000, sockets=300_000, streams=100_000),
)


def rows(costs: Costs, needs: Sequence[Need] = NEEDS) -> list[str]:
    """A table's rows, in Markdown."""
    return [_row(need, plan(costs, need)) for need in needs]


def _row(need: Need, found: Plan) -> str:
    cells = (
        f"{need.sessions:,}",
        f"{need.sockets:,}",
        f"{need.streams:,}",
        f"{need.tokens:,.0f}",
        f"{found.worker_processors:,.1f}",
        f"{found.workers:,}",
        f"{found.worker_gib:,.1f}",
        f"{found.redis_processors:,.1f}",
        f"{found.redis_gib:,.1f}",
        f"{found.primaries:,}",
    )
    return f"| {' | '.join(cells)} |"


def cluster_rows(costs: Costs, sizes: Sequence[int] = (3, 6, 12, 24, 100)) -> list[str]:
    """What clusters of so many primaries carry: tokens in a second, and streams."""
    carried = [(size, cluster_tokens(costs, size)) for size in sizes]
    rate = Need().rate
    return [
        f"| {size} | {round(tokens, -3):,.0f} | {round(tokens / rate, -1):,.0f} |"
        for size, tokens in carried
    ]


if __name__ == "__main__":
    slowly = [replace(need, rate=SLOW) for need in NEEDS]
    tables = (rows(MEASURED), rows(MEASURED, slowly), cluster_rows(MEASURED))
    print("\n\n".join(map("\n".join, tables)))
