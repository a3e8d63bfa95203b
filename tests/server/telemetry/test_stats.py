"""The recent past: samples of several workers, added up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from engine.errors import EngineDeadError
from server.engines.client import ServedModel
from server.engines.models import Models
from server.telemetry import stats
from server.telemetry.metrics import Metrics
from server.telemetry.stats import Recorder, Sample, percentile_ms, point_of, read_series
from sessions.directory.samples import Samples
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.server.helpers.engines import IdleEngine

FIGURES: dict[str, str | int | float] = {
    "host": "h1",
    "connections": 3,
    "active_responses": 2,
    "queued_responses": 1,
    "engine_running": 2,
    "kv_blocks_total": 10,
    "kv_blocks_free": 4,
}


class Core(IdleEngine):
    """An engine of which only the counters are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.generated = 5000

    async def metrics(self) -> dict[str, Any]:
        if not self.generated:
            raise EngineDeadError
        return {"prompt_tokens_total": 70, "generation_tokens_total": self.generated}


def sample(replica: str, host: str = "h1", **rest: Any) -> Sample:
    now = {"connections": 2.0, "batch_size": 4.0, "kv_usage": 0.5}
    return Sample(at=1, replica=replica, host=host, seconds=10.0, now=now, **rest)


def test_workers_are_added_up_and_the_core_that_they_share_is_not() -> None:
    core = {"decode_tokens_per_s": 500.0}
    point = point_of(
        [sample("a", core=core), sample("b", core=core), sample("c", host="h2", core=core)]
    )
    assert (point["connections"], point["batch_size"], point["kv_usage"]) == (6, 8, 0.5)
    assert (point["decode_tokens_per_s"], point["prefill_tokens_per_s"]) == (100, 0)


def test_what_happened_twice_in_one_step_counts_and_what_is_the_case_does_not() -> None:
    point = point_of([sample("a", counts={"closes.1000": 1.0}) for _ in range(2)])
    assert (point["closes.1000"], point["connections"]) == (2, 2)


def test_percentiles_are_of_all_workers_together() -> None:
    fast = sample("a", times={"stop_ms": {"0.01": 98.0}})
    slow = sample("b", times={"stop_ms": {"0.5": 1.0, "inf": 1.0}})
    point = point_of([fast, slow])
    assert (point["stop_ms.p50"], point["stop_ms.p99"]) == (10, 500)
    assert percentile_ms({0.01: 1, float("inf"): 9}, 50) == 10


async def test_a_recorder_stores_what_is_the_case_and_what_has_happened(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "STEP_SECONDS", {"15m": 0})
    samples, metrics, core = Samples(store.client, store.keys), Metrics(), Core()
    recorder = Recorder(
        samples, metrics, Models.of_one(ServedModel("m", ""), core), lambda: FIGURES, "w1"
    )
    recording = asyncio.create_task(recorder.record_forever())
    try:
        await stored(samples, 1)
        metrics.count_response("cancelled", "client_cancelled")
        metrics.count_close(1000)
        metrics.observe_stop(0.003, 7)
        core.generated += 40
        found = await stored(samples, 5)
        core.generated = 0  # it is away: the rest is reported all the same
        found = await stored(samples, len(found) + 3)
    finally:
        recording.cancel()
    assert found[0].now["kv_usage"] == 0.6 and found[0].now["connections"] == 3
    assert found[0].core == {}  # what a core did before this worker began is not of these seconds
    happened: dict[str, float] = {}
    for one in found:
        for name, number in {**one.counts, **one.core}.items():
            happened[name] = happened.get(name, 0) + number
    assert happened == {
        "stops.client_cancelled": 1,
        "closes.1000": 1,
        "tokens_discarded_after_stop": 7,
        "decode_tokens_per_s": 40,
    }
    assert [one.times for one in found if one.times] == [{"stop_ms": {"0.005": 1.0}}]


async def stored(samples: Samples, count: int) -> list[Sample]:
    """The samples, when there are so many."""
    async with asyncio.timeout(PATIENCE):
        while len(found := await samples.since("15m", 0)) < count:
            pass  # the question itself lets the recorder go on
    return [msgspec.json.decode(body, type=Sample) for body in found]


async def test_a_series_has_one_value_or_none_for_each_step(store: SessionStore) -> None:
    samples = Samples(store.client, store.keys)
    now = time.time_ns() // 1_000_000
    for ago in (40_000, 20_000, 16 * 60_000):
        one = msgspec.structs.replace(sample("a"), at=now - ago)
        for _ in range(2):  # a repeat changes nothing
            await samples.add("15m", one.at, msgspec.json.encode(one))
    moments, series = await read_series(samples, "15m")
    assert len(moments) == 90 and moments[-1] <= now < moments[-1] + 10_000
    assert [value for value in series["connections"] if value is not None] == [2, 2]
    assert all(len(values) == 90 for values in series.values())
    moments, series = await read_series(samples, "24h")
    assert (len(moments), series) == (288, {})


async def test_samples_that_are_too_old_go_with_the_next(store: SessionStore) -> None:
    samples = Samples(store.client, store.keys)
    for at in (1_000, 2_000, 902_000):
        await samples.add("15m", at, b"%d" % at)
    assert await samples.since("15m", 0) == [b"902000"]
    assert 0 < await store.client.call("PTTL", store.keys.samples("15m")) <= 900_000
