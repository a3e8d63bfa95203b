"""The recent past of all workers: what their samples add up to, a point for each step of a span.

A point is made once, and again when a sample of its step has come, gone or grown. All samples are
read each time, because a worker whose clock or whose Redis was away writes into steps long past.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from server.telemetry.stats import CORE_COUNTS, LONG_STEP_SECONDS, STEP_SECONDS, SUMMED, Sample
from sessions.directory.samples import SPAN_MS, Samples, Span

MAX_AT_ONCE = 25  # points in one turn of the event loop
PERCENTILES = {"ttft_ms": (50, 95, 99), "inter_token_ms": (50, 99), "stop_ms": (50, 99)}

Series = dict[str, list[float | None]]
Values = dict[str, float]  # of one moment, by the name of their series


@dataclass(frozen=True, slots=True)
class Point:
    """`digest` is that of the samples that it was made of."""

    digest: bytes
    values: Values


class Past:
    """One worker's reader. It keeps the points of each span, 3 MB in all with every figure."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._known: dict[Span, dict[int, Point]] = {}

    async def read(self, span: Span) -> tuple[list[int], Series]:
        """The moments (ms) of a span, and for each series one value for each of them.

        None where nothing was measured. Workers are added up, and so are cores, one for each host.
        """
        is_long = span in LONG_STEP_SECONDS
        step_ms = (LONG_STEP_SECONDS if is_long else STEP_SECONDS)[span] * 1000
        last = time.time_ns() // 1_000_000 // step_ms * step_ms
        first = last - SPAN_MS[span] + step_ms
        moments = range(first, last + 1, step_ms)
        bodies: dict[int, list[bytes]] = {}
        for at, body in await self._samples.since(span, first - 1):
            bodies.setdefault(at // step_ms * step_ms, []).append(body)
        known, points, num_new = self._known.get(span, {}), dict[int, Point](), 0
        for at in moments:
            if at not in bodies:
                continue
            digest = blake2b(b"".join(bodies[at]), digest_size=16).digest()
            point = known.get(at)
            if point is None or point.digest != digest:
                samples = [msgspec.json.decode(body, type=Sample) for body in bodies[at]]
                values = long_point_of(samples) if is_long else point_of(samples)
                point = Point(digest, values)
                num_new += 1
                if num_new % MAX_AT_ONCE == 0:
                    await asyncio.sleep(0)  # answers come first
            points[at] = point
        self._known[span] = points
        values_at = [points[at].values if at in points else {} for at in moments]
        names = sorted({name for values in values_at for name in values})
        return list(moments), {name: [values.get(name) for values in values_at] for name in names}


def long_point_of(samples: Sequence[Sample]) -> Values:
    """The same of a long step, in which workers come and go: each counts by its time there."""
    newest = {sample.replica: sample for sample in samples}
    begin = min(sample.at - sample.seconds * 1000 for sample in newest.values())
    covered = max(1.0, max(sample.at for sample in newest.values()) - begin) / 1000
    shares = {name: min(1.0, sample.seconds / covered) for name, sample in newest.items()}
    return point_of([*newest.values()], shares)


def point_of(samples: Sequence[Sample], shares: Mapping[str, float] | None = None) -> Values:
    """The values of one moment; `shares`: how much each worker counts in what is summed."""
    newest = {sample.replica: sample for sample in samples}  # of two in one step, the later one
    point: defaultdict[str, float] = defaultdict(float)
    cores: dict[str, Values] = {}
    for replica, sample in newest.items():
        share = 1.0 if shares is None else shares[replica]
        for name in SUMMED:
            point[name] += sample.now.get(name, 0.0) * share
        core = cores.setdefault(sample.host, dict.fromkeys(CORE_COUNTS, 0.0))
        rates = {name: tokens / max(sample.seconds, 0.001) for name, tokens in sample.core.items()}
        for name, value in {**sample.now, **rates}.items():
            if name not in SUMMED:
                core[name] = max(value, core.get(name, 0.0))
    for core in cores.values():
        _add(point, core)
    point["kv_usage"] /= len(cores)
    if point["cache_queries_per_s"] > 0:
        point["cache_hit_ratio"] = point["cache_hits_per_s"] / point["cache_queries_per_s"]
    times: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for sample in samples:
        _add(point, sample.counts)
        for name, bounds in sample.times.items():
            _add(times[name], bounds)
    for name, bounds in times.items():
        counted = sorted((float(bound), number) for bound, number in bounds.items())
        for percent in PERCENTILES.get(name, ()):
            point[f"{name}.p{percent}"] = percentile_ms(counted, percent)
    return {name: round(value, 4) for name, value in point.items()}


def _add(sums: defaultdict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        sums[name] += value


def percentile_ms(counted: Sequence[tuple[float, float]], percent: int) -> float:
    """The bound that so many percent did not exceed; of the widest bucket, the bound below.

    `counted`: bound in seconds and how many, the lowest first.
    """
    wanted = sum(number for _, number in counted) * percent / 100
    reached, finite = 0.0, 0.0
    for bound, number in counted:
        reached += number
        finite = bound if bound != float("inf") else finite
        if reached >= wanted:
            break
    return finite * 1000
