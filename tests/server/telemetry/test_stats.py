"""What each worker stores of its figures."""

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
from server.telemetry.past import Past, point_of
from server.telemetry.stats import LongSpan, Recorder, Sample
from sessions.directory.samples import Samples
from sessions.model.errors import StoreUnavailable
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.server.helpers.engines import IdleEngine
from tests.server.helpers.samples import sample

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
    return [msgspec.json.decode(body, type=Sample) for _, body in found]


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
    ((_, body),) = await samples.since("30d", 0)
    grown = msgspec.json.decode(body, type=Sample)
    assert (grown.seconds, grown.now["connections"], grown.at) == (30, 2, begin + 20_000)
    long.take(msgspec.structs.replace(sample("a"), at=begin + step_ms))
    await long.store()
    assert len(await samples.since("30d", 0)) == 2  # the next step has its own
    moments, series = await Past(samples).read("30d")
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
    ((_, body),) = await samples.since("7d", 0)
    assert msgspec.json.decode(body, type=Sample).counts == {"errors": 3}


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
    assert await samples.since("15m", 0) == [(902_000, b"902000")]
    assert 0 < await store.client.call("PTTL", store.keys.samples("15m")) <= 900_000
