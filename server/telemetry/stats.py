"""The recent past of all workers: each stores samples of its figures, a reader adds them up.

A sample holds the state at its moment, and what has happened since the sample before.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from server.engines.models import Models
from server.telemetry.metrics import Metrics
from sessions.directory.samples import SPAN_MS, Samples, Span
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

STEP_SECONDS: dict[Span, int] = {"15m": 10, "24h": 300}  # between two samples, and two points
SUMMED = ("connections", "active_responses", "queued_responses")
# A core's figures, which each worker of its host has: name in a sample → counter of the core.
CORE_COUNTS = {
    "prefill_tokens_per_s": "prompt_tokens_total",
    "decode_tokens_per_s": "generation_tokens_total",
}
PERCENTILES = {"ttft_ms": (50, 95, 99), "inter_token_ms": (50, 99), "stop_ms": (50, 99)}

Series = dict[str, list[float | None]]
Totals = dict[tuple[str, str], float]  # (kind or histogram, name or bound) → since the start


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker's figures. `counts`, `core` and `times` are of the `seconds` before `at`.

    `times`: name → upper bound in seconds → how many took no longer than that, but longer than
    the bound below.
    """

    at: int
    replica: str
    host: str
    seconds: float
    now: dict[str, float]
    counts: dict[str, float] = {}
    core: dict[str, float] = {}
    times: dict[str, dict[str, float]] = {}


class Recorder:
    """Stores one worker's samples; what an outage of Redis delays is in the next one."""

    def __init__(
        self,
        samples: Samples,
        metrics: Metrics,
        models: Models,
        figures: Callable[[], Mapping[str, str | int | float]],
        replica: str,
    ) -> None:
        self._samples = samples
        self._metrics = metrics
        self._models = models
        self._figures = figures
        self._replica = replica

    async def record_forever(self) -> None:
        await asyncio.gather(*(self._record_span(span) for span in STEP_SECONDS))

    async def _record_span(self, span: Span) -> None:
        before: Totals = {}
        pending: tuple[int, bytes] | None = None
        measured_at = time.monotonic()
        while True:
            try:
                if pending is not None:  # again: perhaps only the reply was late
                    await self._samples.add(span, *pending)
                totals, now = await self._totals(), time.monotonic()
                sample = self._sample(totals, before, now - measured_at)
                before, measured_at = totals, now
                pending = sample.at, msgspec.json.encode(sample)
                await self._samples.add(span, *pending)
                pending = None
            except StoreUnavailable:
                pass  # `Health` reports it
            except Exception:
                logger.exception("sample not stored")
            await asyncio.sleep(STEP_SECONDS[span])

    async def _totals(self) -> Totals:
        """Everything that only grows."""
        totals = self._metrics.totals()
        for model, core in (await self._models.metrics()).items():
            for name, key in CORE_COUNTS.items():
                totals["core", f"{name} {model}"] = float(core[key])
        return totals

    def _sample(self, totals: Totals, before: Totals, seconds: float) -> Sample:
        grown: dict[str, dict[str, float]] = {"count": {}, "core": {}}
        for (kind, name), total in totals.items():
            # A core that is seen for the first time may have worked for days.
            since = before.get((kind, name), total if kind == "core" else 0.0)
            more = total - since if total >= since else total  # less: it is another core
            if more:
                of_kind = grown.setdefault(kind, {})
                name = name.partition(" ")[0] if kind == "core" else name  # of all its models
                of_kind[name] = of_kind.get(name, 0.0) + more
        counts, core = grown.pop("count"), grown.pop("core")
        figures = self._figures()
        blocks, free = (float(figures[f"kv_blocks_{name}"]) for name in ("total", "free"))
        now = {name: float(figures[name]) for name in SUMMED}
        now["batch_size"] = float(figures["engine_running"])
        now["kv_usage"] = round(1 - free / blocks, 4) if blocks else 0.0
        return Sample(
            at=time.time_ns() // 1_000_000,
            replica=self._replica,
            host=str(figures["host"]),
            seconds=round(seconds, 3),
            now=now,
            counts=counts,
            core=core,
            times=grown,
        )


async def read_series(samples: Samples, span: Span) -> tuple[list[int], Series]:
    """The moments (ms) of a span, and for each series one value for each of them.

    None where nothing was measured. Workers are added up, and so are cores, one for each host.
    """
    step_ms = STEP_SECONDS[span] * 1000
    last = time.time_ns() // 1_000_000 // step_ms * step_ms
    first = last - SPAN_MS[span] + step_ms
    points: dict[int, list[Sample]] = {}
    for body in await samples.since(span, first - 1):
        sample = msgspec.json.decode(body, type=Sample)
        points.setdefault(sample.at // step_ms * step_ms, []).append(sample)
    moments = list(range(first, last + 1, step_ms))
    values = [point_of(points[at]) if at in points else {} for at in moments]
    names = sorted({name for point in values for name in point})
    return moments, {name: [point.get(name) for point in values] for name in names}


def point_of(samples: Sequence[Sample]) -> dict[str, float]:
    """The values of one moment, by the name of their series."""
    newest = {sample.replica: sample for sample in samples}  # of two in one step, the later one
    point: defaultdict[str, float] = defaultdict(float)
    cores: dict[str, dict[str, float]] = {}
    times: dict[str, Counter[float]] = {}
    for sample in newest.values():
        _add(point, {name: sample.now.get(name, 0.0) for name in SUMMED})
        core = cores.setdefault(sample.host, dict.fromkeys(CORE_COUNTS, 0.0))
        rates = {name: tokens / max(sample.seconds, 0.001) for name, tokens in sample.core.items()}
        for name, value in {**sample.now, **rates}.items():
            if name not in SUMMED:
                core[name] = max(value, core.get(name, 0.0))
    for core in cores.values():
        _add(point, core)
    point["kv_usage"] /= len(cores)
    for sample in samples:
        _add(point, sample.counts)
        for name, bounds in sample.times.items():
            counted = times.setdefault(name, Counter())
            for bound, number in bounds.items():
                counted[float(bound)] += int(number)
    for name, counted in times.items():
        for percent in PERCENTILES.get(name, ()):
            point[f"{name}.p{percent}"] = percentile_ms(counted, percent)
    return {name: round(value, 4) for name, value in point.items()}


def _add(point: defaultdict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        point[name] += value


def percentile_ms(counted: Mapping[float, float], percent: int) -> float:
    """The bound that so many percent did not exceed; of the widest bucket, the bound below."""
    wanted = sum(counted.values()) * percent / 100
    reached, finite = 0.0, 0.0
    for bound in sorted(counted):
        reached += counted[bound]
        finite = bound if bound != float("inf") else finite
        if reached >= wanted:
            break
    return finite * 1000
