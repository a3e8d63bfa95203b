"""What `/metrics` shows: this worker's counters, and the engine's, fetched when somebody looks.

No metric carries a user's words, ids or titles. Every worker answers for itself; the engine's
numbers are the same from each, because there is one core for each model.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from server.config.models import ModelState, ModelStatus
from server.telemetry.logs import Losses

SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
LONG = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
# What the engine calls a thing in its own code → what operators and scripts know it as.
ENGINE_NAMES = {
    "sleeping": "engine_sleeping",
    "num_running": "requests_running",
    "num_waiting": "requests_waiting",
    "num_waiting_tokens": "tokens_waiting",
    "num_blocks_total": "kv_blocks",  # `_total` is the end of a counter
    "num_blocks_free": "kv_blocks_free",
    "requests_total": "engine_requests_total",
    "batch_invariant": "engine_batch_invariant",
    "row_multiple": "engine_row_multiple",
    "text_only": "engine_text_only",
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types there


class EngineCollector(Collector):
    """The core's last figures: numbers become gauges, `*_total` counters, dicts histograms."""

    def __init__(self) -> None:
        self.values: Mapping[str, Any] = {}

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        for name, value in self.values.items():
            name = ENGINE_NAMES.get(name, name)
            full = "parley_" + name
            help_text = "Engine core: " + name.replace("_", " ") + "."
            if isinstance(value, Mapping):
                histogram = HistogramMetricFamily(full, help_text)
                buckets = [
                    (le if isinstance(le, str) else _bound(le), count)
                    for le, count in value["buckets"]
                ]
                histogram.add_metric([], buckets, value["sum"])
                yield histogram
            elif isinstance(value, str):
                gauge = GaugeMetricFamily(full + "_info", help_text, labels=["value"])
                gauge.add_metric([value], 1)
                yield gauge
            elif name.endswith("_total"):
                yield CounterMetricFamily(full.removesuffix("_total"), help_text, value=value)
            elif isinstance(value, int | float):
                yield GaugeMetricFamily(full, help_text, value=value)


# Of each model: what the engine calls a thing → its name, as above.
MODEL_GAUGES = {
    "num_running": "requests_running",
    "num_waiting": "requests_waiting",
    "num_blocks_total": "kv_blocks",
    "num_blocks_free": "kv_blocks_free",
}
KV = {"num_blocks_total", "num_blocks_free"}  # not of each engine that lies elsewhere
MODEL_COUNTERS = ("prompt_tokens_total", "generation_tokens_total")


class ModelCollector(Collector):
    """Figures with the label `model`, of one model as of several: a rule that scales Parley by them
    is the same for both.
    """

    def __init__(self) -> None:
        self.statuses: Sequence[ModelStatus] = ()
        self.cores: Mapping[str, Mapping[str, Any]] = {}  # the figures of those that are there

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        loaded = {it.name: int(it.state is ModelState.LOADED) for it in self.statuses}
        memory = {it.name: it.memory_bytes for it in self.statuses if it.memory_bytes is not None}
        yield _by_model("parley_model_loaded", "1 while it is loaded.", loaded)
        yield _by_model("parley_model_memory_bytes", "What its process takes at most.", memory)
        for key, name in MODEL_GAUGES.items():
            values = {model: core[key] for model, core in self.cores.items() if key in core}
            yield _by_model(f"parley_model_{name}", f"Engine core: {name}.", values)
        usage = {model: _kv_used(core) for model, core in self.cores.items() if KV <= core.keys()}
        yield _by_model("parley_model_kv_used_ratio", "Blocks that are not free, 0 to 1.", usage)
        for key in MODEL_COUNTERS:
            counter = CounterMetricFamily(
                f"parley_model_{key.removesuffix('_total')}",
                f"Engine core: {key}.",
                labels=["model"],
            )
            for model, core in self.cores.items():
                counter.add_metric([model], core.get(key, 0))
            yield counter


def _kv_used(core: Mapping[str, Any]) -> float:
    """A core without blocks, as one that sleeps, has none in use."""
    blocks = core["num_blocks_total"]
    return 1 - core["num_blocks_free"] / blocks if blocks else 0.0


def _by_model(name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=["model"])
    for model, value in values.items():
        gauge.add_metric([model], value)
    return gauge


def _bound(le: float) -> str:
    return "+Inf" if le == float("inf") else repr(float(le))


class StoreCollector(Collector):
    """How many calls the client of the store has sent."""

    def __init__(self, num_calls: Callable[[], int]) -> None:
        self._num_calls = num_calls

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        text = "Calls to Redis; a script is one."
        yield CounterMetricFamily("parley_store_calls", text, value=self._num_calls())


class LogCollector(Collector):
    """Lines that the log of this worker did not take."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        text = "Lines that the log did not take: its disk is full, or its reader gone."
        yield CounterMetricFamily("parley_log_lines_lost", text, value=Losses.total)


class SpanCounts(Protocol):
    """What `Tracing` counts."""

    @property
    def num_sent(self) -> int: ...

    @property
    def num_dropped(self) -> int: ...


class SpanCollector(Collector):
    """What became of the spans for the collector of traces."""

    def __init__(self, tracing: SpanCounts) -> None:
        self._tracing = tracing

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        sent, dropped = self._tracing.num_sent, self._tracing.num_dropped
        yield CounterMetricFamily("parley_trace_spans_sent", "Spans sent.", value=sent)
        text = "Spans that the collector did not take in time."
        yield CounterMetricFamily("parley_trace_spans_dropped", text, value=dropped)


class Metrics:
    """One worker's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineCollector()
        self.registry.register(self.engine)
        self.models = ModelCollector()
        self.registry.register(self.models)
        r = self.registry
        self.connections = Gauge("parley_connections", "Open websockets.", registry=r)
        self.engine_up = Gauge("parley_engine_up", "1 while the core answers.", registry=r)
        self.store_up = Gauge("parley_store_up", "1 while Redis answers.", registry=r)
        self.feed_up = Gauge("parley_feed_up", "1 while Redis' channels are heard.", registry=r)
        self._responses = Counter(
            "parley_responses", "Ended responses.", ["status", "reason"], registry=r
        )
        self._errors = Counter("parley_errors", "Errors sent to clients.", ["code"], registry=r)
        self._closes = Counter("parley_closes", "Sockets closed by us.", ["code"], registry=r)
        self._reaped = Counter("parley_runs_reaped", "Runs taken over.", registry=r)
        self._discarded = Counter(
            "parley_tokens_discarded_after_stop", "Tokens decoded after a stop.", registry=r
        )
        self.first_token = Histogram(
            "parley_time_to_first_token_seconds",
            "From response.create to the first token.",
            buckets=LONG,
            registry=r,
        )
        self.model_first_token = Histogram(
            "parley_model_time_to_first_token_seconds",
            "The same of one model's answers.",
            ["model"],
            buckets=LONG,
            registry=r,
        )
        self.inter_event = QuickHistogram(
            "parley_inter_token_seconds",
            "Between two text events of one answer.",
            buckets=SHORT,
            registry=r,
        )
        self._stop = Histogram(
            "parley_stop_seconds", "From a stop to response.done.", buckets=SHORT, registry=r
        )

        self._tool_calls = Counter(
            "parley_tool_calls", "Calls of tools, over.", ["server", "outcome"], registry=r
        )
        self._tool_call = Histogram(
            "parley_tool_call_seconds",
            "From the sending of a call to its outcome.",
            ["server"],
            buckets=LONG,
            registry=r,
        )
        self.tool_calls_running = Gauge(
            "parley_tool_calls_running", "Calls of tools that run.", ["server"], registry=r
        )

    def count_tool_call(self, server: str, outcome: str, seconds: float | None) -> None:
        """`server` is empty of a tool that nobody has; `seconds` None: it was never sent."""
        self._tool_calls.labels(server, outcome).inc()
        if seconds is not None:
            self._tool_call.labels(server).observe(seconds)

    def observe_stop(self, seconds: float, num_discarded: int) -> None:
        self._stop.observe(seconds)
        self._discarded.inc(num_discarded)

    def count_response(self, status: str, reason: str) -> None:
        self._responses.labels(status, reason).inc()

    def count_error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def count_close(self, code: int) -> None:
        self._closes.labels(str(code)).inc()

    def totals(self) -> dict[tuple[str, str], float]:
        """What has grown since the start: (`count`, what) and (histogram, its bucket's bound)."""
        found: dict[tuple[str, str], float] = {
            ("count", "tokens_discarded_after_stop"): _value(self._discarded),
            ("count", "errors"): _value(self._errors),
            **{("count", f"closes.{code}"): n for (code,), n in _by_label(self._closes)},
        }
        for (status, reason), number in _by_label(self._responses):
            ended = ("count", f"responses.{status}")
            found[ended] = found.get(ended, 0.0) + number
            if status == "cancelled":
                found["count", f"stops.{reason}"] = number
        for name, histogram in (
            ("ttft_ms", self.first_token),
            ("inter_token_ms", self.inter_event),
            ("stop_ms", self._stop),
        ):
            found |= {(name, bound): number for bound, number in _buckets(histogram)}
        return found

    def count_reaped(self) -> None:
        self._reaped.inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class QuickHistogram(Histogram):
    """For what is observed for each token: the library's takes two locks, and looks at each bound.

    What is new is added when somebody looks.
    """

    def __init__(self, name: str, documentation: str, **options: Any) -> None:
        super().__init__(name, documentation, **options)
        self._new = [0] * len(self._upper_bounds)
        self._new_sum = 0.0

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        self._new[bisect_left(self._upper_bounds, amount)] += 1
        self._new_sum += amount

    def collect(self) -> Iterable[Metric]:
        for bucket, number in zip(self._buckets, self._new, strict=True):
            bucket.inc(number)
        self._sum.inc(self._new_sum)
        self._new, self._new_sum = [0] * len(self._upper_bounds), 0.0
        return super().collect()


def _samples(metric: Collector, suffix: str) -> Iterable[tuple[Mapping[str, str], float]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels, sample.value


def _value(counter: Counter) -> float:
    return sum(value for _, value in _samples(counter, "_total"))


def _by_label(counter: Counter) -> Iterable[tuple[tuple[str, ...], float]]:
    for labels, value in _samples(counter, "_total"):
        yield tuple(labels.values()), value


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    """Each bucket's upper bound, and how many are in it and in none below."""
    below = 0.0
    for labels, value in _samples(histogram, "_bucket"):
        yield labels["le"].replace("+Inf", "inf"), value - below
        below = value
