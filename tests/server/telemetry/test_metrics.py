"""What `/metrics` says, in the text format, under the promised names."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Histogram

from engine.core.metrics import CoreMetrics
from server.config.models import ModelState, ModelStatus
from server.engines.placement.figures import EngineFigures
from server.telemetry.engine_figures import EnginesCollector
from server.telemetry.metrics import (
    SHORT,
    LogCollector,
    Metrics,
    SpanCollector,
    StoreCollector,
)
from tests.engine.helpers.fakes import make_scheduler
from tests.helpers.root import ROOT

ENGINE: dict[str, Any] = {
    "num_running": 2,
    "num_waiting": 1,
    "num_blocks_total": 100,
    "num_blocks_free": 73,
    "requests_total": 9,
    "prompt_tokens_total": 500,
    "batch_invariant": 1,
    "row_multiple": 4,
    "text_only": 1,
    "attention": "paged",
    "step_seconds": {"buckets": [(0.001, 4), (0.01, 6), (float("inf"), 7)], "sum": 0.5, "count": 7},
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_the_engines_figures_have_the_names_that_scripts_know(metrics: Metrics) -> None:
    metrics.engine.values = ENGINE
    found = values(metrics)
    assert found["parley_kv_blocks"] == 100
    assert found["parley_kv_blocks_free"] == 73
    assert found["parley_requests_running"] == 2
    assert found["parley_requests_waiting"] == 1
    assert found["parley_prompt_tokens_total"] == 500
    assert found["parley_engine_batch_invariant"] == 1
    assert found["parley_engine_row_multiple"] == 4
    assert found["parley_engine_text_only"] == 1


def test_histograms_texts_and_counters_are_rendered_as_what_they_are(metrics: Metrics) -> None:
    metrics.engine.values = ENGINE
    text = metrics.render().decode()
    assert "# TYPE parley_step_seconds histogram" in text
    assert "# TYPE parley_prompt_tokens_total counter" in text
    assert "# TYPE parley_kv_blocks gauge" in text
    found = values(metrics)
    assert found['parley_step_seconds_bucket{le="0.01"}'] == 6
    assert found['parley_step_seconds_bucket{le="+Inf"}'] == found["parley_step_seconds_count"] == 7
    assert found['parley_attention_info{value="paged"}'] == 1


def test_without_a_core_there_are_no_figures_of_it(metrics: Metrics) -> None:
    assert "parley_kv_blocks_free" not in values(metrics)
    assert values(metrics)["parley_connections"] == 0


def test_what_is_counted_is_shown(metrics: Metrics) -> None:
    metrics.count_response("cancelled", "client_cancelled")
    metrics.count_error("invalid_json")
    metrics.count_error("invalid_json")
    metrics.count_close(4400)
    metrics.observe_stop(0.02, num_discarded=3)
    metrics.first_token.observe(0.3)
    metrics.model_first_token.labels("village").observe(0.3)
    metrics.inter_event.observe(0.004)
    found = values(metrics)
    assert found['parley_responses_total{reason="client_cancelled",status="cancelled"}'] == 1
    assert found['parley_errors_total{code="invalid_json"}'] == 2
    assert found['parley_closes_total{code="4400"}'] == 1
    assert found["parley_tokens_discarded_after_stop_total"] == 3
    assert found["parley_stop_seconds_count"] == 1
    assert found['parley_time_to_first_token_seconds_bucket{le="0.5"}'] == 1
    bucket = 'parley_model_time_to_first_token_seconds_bucket{le="0.5",model="village"}'
    assert found[bucket] == 1
    assert found['parley_inter_token_seconds_bucket{le="0.005"}'] == 1


def test_moments_between_tokens_are_counted_as_the_library_counts_whoever_looks_in_between(
    metrics: Metrics,
) -> None:
    library = Histogram("expected", "By itself.", buckets=SHORT, registry=metrics.registry)
    for seconds in (0.0, 0.001, 0.0011, 0.3, 0.3, 5.0, 60.0):
        library.observe(seconds)
        metrics.inter_event.observe(seconds)
        found = values(metrics)
        lines = [name for name in found if name.startswith("expected_")]
        assert len(lines) == len(SHORT) + 3  # with the last bucket, count and sum
        for name in lines:
            assert found[name.replace("expected", "parley_inter_token_seconds")] == found[name]


def test_workers_do_not_share_figures() -> None:
    first, second = Metrics(), Metrics()
    first.count_close(1000)
    assert 'parley_closes_total{code="1000"}' not in values(second)


def exported() -> dict[str, str]:
    """Every name that a worker of two models, and with tracing, exports, with its type."""
    metrics = Metrics()
    engine = EngineFigures(
        "e",
        "native",
        None,
        1.0,
        "ready",
        is_draining=False,
        num_running=0,
        num_waiting=0,
        num_blocks=0,
        num_blocks_free=0,
    )
    metrics.registry.register(EnginesCollector(lambda: {"a": [engine]}))
    metrics.models.statuses = [ModelStatus(name=name, kind="native") for name in ("a", "b")]
    metrics.models.cores = {"a": CoreMetrics("a", "cpu").snapshot(make_scheduler())}
    metrics.registry.register(LogCollector())
    metrics.registry.register(StoreCollector(lambda: 0))
    metrics.registry.register(SpanCollector(SimpleNamespace(num_sent=0, num_dropped=0)))
    metrics.engine.values = CoreMetrics("model", "cpu").snapshot(make_scheduler())
    lines = [line.split() for line in metrics.render().decode().splitlines()]
    return {words[2]: words[3] for words in lines if words[:2] == ["#", "TYPE"]}


@pytest.mark.row("L3")
def test_metric_names_are_as_promtool_wants_them() -> None:
    for name, kind in exported().items():
        words = name.split("_")
        assert re.fullmatch("parley(_[a-z]+)+", name), name
        assert name.endswith("_total") == (kind == "counter"), (name, kind)
        assert name.endswith("_seconds") or kind != "histogram", name
        assert not {"gauge", "counter", "histogram", "bucket", "sum", "count"} & set(words), name
        units = {"ms", "milliseconds", "minutes", "hours", "kb", "mb", "kilobytes", "percent"}
        assert not units & set(words), name  # base units only: seconds, bytes, ratios


@pytest.mark.row("L3")
def test_the_docs_list_exactly_the_exported_metrics() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `parley_")]
    listed = {
        name: row[2].strip().partition(",")[0]
        for row in rows
        for name in re.findall("`(parley_[a-z_]+)`", row[1])
    }
    assert listed == exported()


def test_each_model_has_figures_of_its_own() -> None:
    metrics = Metrics()
    first = ModelStatus(name="a", kind="native", state=ModelState.LOADED, memory_bytes=5)
    second = ModelStatus(name="b", kind="native")
    metrics.models.statuses = [first, second]
    metrics.models.cores = {
        "a": {
            "num_running": 3,
            "num_waiting": 2,
            "num_blocks_total": 100,
            "num_blocks_free": 75,
            "generation_tokens_total": 7,
        }
    }
    lines = metrics.render().decode().splitlines()
    assert {
        'parley_model_loaded{model="a"} 1.0',
        'parley_model_loaded{model="b"} 0.0',
        'parley_model_memory_bytes{model="a"} 5.0',
        'parley_model_requests_running{model="a"} 3.0',
        'parley_model_requests_waiting{model="a"} 2.0',
        'parley_model_kv_used_ratio{model="a"} 0.25',
        'parley_model_generation_tokens_total{model="a"} 7.0',
    } <= set(lines)
    assert not [line for line in lines if 'model="b"' in line and "loaded" not in line]


def test_a_model_alone_is_scaled_by_the_same_figures_as_one_of_several() -> None:
    metrics = Metrics()
    metrics.models.statuses = [ModelStatus(name="a", kind="native", state=ModelState.LOADED)]
    metrics.models.cores = {"a": CoreMetrics("a", "cpu").snapshot(make_scheduler())}
    metrics.model_first_token.labels("a").observe(0.2)
    found = values(metrics)
    for name in ("requests_waiting", "requests_running", "kv_used_ratio"):
        assert found[f'parley_model_{name}{{model="a"}}'] == 0, name
    assert found['parley_model_time_to_first_token_seconds_count{model="a"}'] == 1


def test_an_engine_that_says_nothing_of_its_blocks_has_no_share_of_them_in_use() -> None:
    metrics = Metrics()
    metrics.models.statuses = [ModelStatus(name="a", kind="vllm")]
    metrics.models.cores = {"a": {"num_waiting": 2}}
    found = values(metrics)
    assert found['parley_model_requests_waiting{model="a"}'] == 2
    assert 'parley_model_kv_used_ratio{model="a"}' not in found


def test_a_core_that_sleeps_without_blocks_uses_none_of_them() -> None:
    metrics = Metrics()
    metrics.models.statuses = [ModelStatus(name="a", kind="native")]
    metrics.models.cores = {"a": {"num_blocks_total": 0, "num_blocks_free": 0}}
    assert values(metrics)['parley_model_kv_used_ratio{model="a"}'] == 0
