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
from server.telemetry.stats import (
    LongSpan,
    Recorder,
    Sample,
    long_point_of,
    percentile_ms,
    point_of,
    read_series,
)
from sessions.directory.samples import Samples
from sessions.model.errors import StoreUnavailable
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
        metrics.count_error("rate_limited")
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
        "responses.cancelled": 1,
        "errors": 1,
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


def test_of_what_was_looked_up_in_the_cache_a_share_was_found() -> None:
    asked = {"cache_queries_per_s": 400.0, "cache_hits_per_s": 100.0}
    assert point_of([sample("a", core=asked)])["cache_hit_ratio"] == 0.25
    assert "cache_hit_ratio" not in point_of([sample("a")])  # nobody asked


async def test_a_long_step_is_one_sample_of_each_worker_that_grows(store: SessionStore) -> None:
    samples = Samples(store.client, store.keys)
    long = LongSpan(samples, "30d")
    step_ms = stats.LONG_STEP_SECONDS["30d"] * 1000
    begin = time.time_ns() // 1_000_000 // step_ms * step_ms
    for number in range(3):
        now = {"connections": 2.0 * number, "batch_size": 1.0, "kv_usage": 0.5}
        ended = {"responses.completed": 2.0}
        of_step = sample("a", counts=ended, core={"decode_tokens_per_s": 50.0})
        at = begin + number * 10_000
        long.take(msgspec.structs.replace(of_step, at=at, now=now))
        await long.store()
    (body,) = await samples.since("30d", 0)
    grown = msgspec.json.decode(body, type=Sample)
    assert (grown.seconds, grown.now["connections"], grown.at) == (30, 2, begin + 20_000)
    long.take(msgspec.structs.replace(sample("a"), at=begin + step_ms))
    await long.store()
    assert len(await samples.since("30d", 0)) == 2  # the next step has its own
    moments, series = await read_series(samples, "30d")
    assert len(moments) == 360 and moments[-1] == begin
    values = (series["responses.completed"][-1], series["decode_tokens_per_s"][-1])
    assert values == (6, 5)  # 150 tokens in 30 s


async def test_what_an_outage_left_in_doubt_is_not_counted_twice(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = Samples(store.client, store.keys)
    long = LongSpan(samples, "7d")
    add = samples.add

    async def lost_reply(*arguments: Any, **options: Any) -> None:
        await add(*arguments, **options)
        raise StoreUnavailable

    monkeypatch.setattr(samples, "add", lost_reply)
    for at in (10_000, 20_000):
        long.take(msgspec.structs.replace(sample("a", counts={"errors": 1.0}), at=at))
        with pytest.raises(StoreUnavailable):
            await long.store()
    monkeypatch.setattr(samples, "add", add)
    long.take(msgspec.structs.replace(sample("a", counts={"errors": 1.0}), at=30_000))
    await long.store()
    (body,) = await samples.since("7d", 0)
    assert msgspec.json.decode(body, type=Sample).counts == {"errors": 3}


def test_workers_that_follow_each_other_in_a_long_step_are_not_added_up() -> None:
    minute = 60_000
    first = msgspec.structs.replace(sample("a"), at=60 * minute, seconds=3600.0)
    second = msgspec.structs.replace(sample("b"), at=120 * minute, seconds=3600.0)
    beside = msgspec.structs.replace(sample("c"), at=120 * minute, seconds=7200.0)
    assert long_point_of([first, second])["connections"] == 2
    assert long_point_of([first, second, beside])["connections"] == 4


def test_a_sample_of_an_older_server_is_read_and_one_of_ours_by_it() -> None:
    older = b'{"at":1,"replica":"a","host":"h","seconds":10,"now":{"connections":2}}'
    assert point_of([msgspec.json.decode(older, type=Sample)])["connections"] == 2

    class OlderSample(msgspec.Struct):  # as version 0.1 has it
        at: int
        replica: str
        counts: dict[str, float] = {}

    ours = msgspec.json.encode(sample("a", counts={"responses.failed": 1.0}))
    assert msgspec.json.decode(ours, type=OlderSample).counts == {"responses.failed": 1}


async def test_samples_that_are_too_old_go_with_the_next(store: SessionStore) -> None:
    samples = Samples(store.client, store.keys)
    for at in (1_000, 2_000, 902_000):
        await samples.add("15m", at, b"%d" % at)
    assert await samples.since("15m", 0) == [b"902000"]
    assert 0 < await store.client.call("PTTL", store.keys.samples("15m")) <= 900_000
