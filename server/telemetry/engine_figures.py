"""What `/metrics` shows of each of several engines, as this worker has it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engines.placement.figures import EngineFigures

Figures = Callable[[], Mapping[str, Sequence[EngineFigures]]]

GAUGES: Mapping[str, tuple[str, Callable[[EngineFigures], float | None]]] = {
    "ready": ("1 while it answers.", lambda one: one.state == "ready"),
    "draining": ("1 while it takes no new answers.", lambda one: one.is_draining),
    "answers": ("Answers of this worker that it writes.", lambda one: one.num_answers),
    "sessions": ("Sessions of this worker that are its.", lambda one: one.num_sessions),
    "running": ("Requests that it computes, of all workers.", lambda one: one.num_running),
    "waiting": ("Requests that wait there, of all workers.", lambda one: one.num_waiting),
    "kv_blocks": ("Blocks for keys and values.", lambda one: one.num_blocks),
    "kv_blocks_free": ("Those that a new answer could have.", lambda one: one.num_blocks_free),
}


class EnginesCollector(Collector):
    """Nothing of a server whose models have one engine each."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        figures = self._figures().items()
        listed = [(model, one) for model, all_of in figures for one in all_of]
        known = [(model, one) for model, one in listed if one.state != "not_loaded"]
        if not known:
            return
        for name, (text, value_of) in GAUGES.items():
            gauge = GaugeMetricFamily(f"parley_engine_{name}", text, labels=["model", "engine"])
            for model, one in known:
                if (value := value_of(one)) is not None:
                    gauge.add_metric([model, one.name], value)
            yield gauge
        text = "Answers of this worker that went on at another engine."
        counter = CounterMetricFamily("parley_engine_moved", text, labels=["model", "engine"])
        for model, one in known:
            counter.add_metric([model, one.name], one.num_moved)
        yield counter
