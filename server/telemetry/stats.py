"""Samples: what each worker stores of its figures, of which `past.py` makes the past of all.

A sample holds the state at its moment, and what has happened since the sample before. Those of the
longest spans are made of the samples of a day: each grows until its step is over.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog

from server.engines.models import Models
from server.telemetry.metrics import Metrics
from sessions.directory.samples import Samples, Span
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

STEP_SECONDS: dict[Span, int] = {"15m": 10, "24h": 300}  # between two samples, and two points
LONG_STEP_SECONDS: dict[Span, int] = {"7d": 1800, "30d": 7200}  # between two points
SOURCE: Span = "24h"  # of the long spans
SUMMED = ("connections", "active_responses", "queued_responses")
# A core's figures, which each worker of its host has: name in a sample → counter of the core.
CORE_COUNTS = {
    "prefill_tokens_per_s": "prompt_tokens_total",
    "decode_tokens_per_s": "generation_tokens_total",
    "cache_hits_per_s": "prefix_cache_hits_total",
    "cache_queries_per_s": "prefix_cache_queries_total",
}

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
        self._long = [LongSpan(samples, span) for span in LONG_STEP_SECONDS]

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
                longer = self._long if span == SOURCE else ()
                for long in longer:
                    long.take(sample)
                await self._samples.add(span, *pending)
                pending = None
                for long in longer:
                    await long.store()
            except StoreUnavailable:
                pass  # `Health` reports it
            except Exception:
                logger.exception("sample not stored")
            await asyncio.sleep(_seconds_to_next(STEP_SECONDS[span]))

    async def _totals(self) -> Totals:
        """Everything that only grows."""
        totals = self._metrics.totals()
        for model, core in (await self._models.metrics()).items():
            for name, key in CORE_COUNTS.items():
                totals["core", f"{name} {model}"] = float(core.get(key, 0))
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


def _seconds_to_next(step_seconds: int) -> float:
    """Until the next step begins: samples that come late would leave a step without any."""
    return step_seconds - time.time() % step_seconds if step_seconds else 0.0


class LongSpan:
    """One worker's samples of a long span: one for each step, which grows."""

    def __init__(self, samples: Samples, span: Span) -> None:
        self._samples = samples
        self._span = span
        self._step_ms = LONG_STEP_SECONDS[span] * 1000
        self._growing: Sample | None = None
        self._bodies: set[bytes] = set()  # of the same sample as it was, perhaps stored

    def take(self, sample: Sample) -> None:
        """Count one more sample in."""
        before = self._growing
        if before is None or before.at // self._step_ms != sample.at // self._step_ms:
            self._bodies.clear()
            self._growing = sample
        else:
            self._growing = joined(before, sample)

    async def store(self) -> None:
        """Store it as it is now, instead of as it was. Raises `StoreUnavailable`: say it again."""
        if self._growing is None:
            return
        body = msgspec.json.encode(self._growing)
        outdated, self._bodies = self._bodies - {body}, self._bodies | {body}
        await self._samples.add(self._span, self._growing.at, body, replacing=outdated)
        self._bodies = {body}


def joined(one: Sample, other: Sample) -> Sample:
    """Both as one: `now` is their mean, by their seconds."""
    seconds = one.seconds + other.seconds
    share = other.seconds / seconds if seconds else 1.0
    now = {
        name: round(value * share + one.now.get(name, value) * (1 - share), 4)
        for name, value in other.now.items()
    }
    return Sample(
        at=other.at,
        replica=other.replica,
        host=other.host,
        seconds=round(seconds, 3),
        now=now,
        counts=_sum(one.counts, other.counts),
        core=_sum(one.core, other.core),
        times={
            name: _sum(one.times.get(name, {}), other.times.get(name, {}))
            for name in {**one.times, **other.times}
        },
    )


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}
