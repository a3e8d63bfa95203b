"""The recent past: samples of several workers, added up."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace

import msgspec
import pytest

from server.telemetry import past
from server.telemetry.past import Past, long_point_of, percentile_ms, point_of
from server.telemetry.stats import LONG_STEP_SECONDS, STEP_SECONDS, Sample
from sessions.directory.samples import SPAN_MS, Samples, Span
from sessions.store.store import SessionStore
from tests.server.helpers.samples import sample


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
    assert percentile_ms([(0.01, 1), (float("inf"), 9)], 50) == 10


async def test_a_series_has_one_value_or_none_for_each_step(store: SessionStore) -> None:
    samples = Samples(store.client, store.keys)
    now = time.time_ns() // 1_000_000
    for ago in (40_000, 20_000, 16 * 60_000):
        one = msgspec.structs.replace(sample("a"), at=now - ago)
        for _ in range(2):  # a repeat changes nothing
            await samples.add("15m", one.at, msgspec.json.encode(one))
    moments, series = await Past(samples).read("15m")
    assert len(moments) == 90 and moments[-1] <= now < moments[-1] + 10_000
    assert [value for value in series["connections"] if value is not None] == [2, 2]
    assert all(len(values) == 90 for values in series.values())
    moments, series = await Past(samples).read("24h")
    assert (len(moments), series) == (288, {})


def test_of_what_was_looked_up_in_the_cache_a_share_was_found() -> None:
    asked = {"cache_queries_per_s": 400.0, "cache_hits_per_s": 100.0}
    assert point_of([sample("a", core=asked)])["cache_hit_ratio"] == 0.25
    assert "cache_hit_ratio" not in point_of([sample("a")])  # nobody asked


def test_workers_that_follow_each_other_in_a_long_step_are_not_added_up() -> None:
    minute = 60_000
    first = msgspec.structs.replace(sample("a"), at=60 * minute, seconds=3600.0)
    second = msgspec.structs.replace(sample("b"), at=120 * minute, seconds=3600.0)
    beside = msgspec.structs.replace(sample("c"), at=120 * minute, seconds=7200.0)
    assert long_point_of([first, second])["connections"] == 2
    assert long_point_of([first, second, beside])["connections"] == 4


@pytest.mark.parametrize("span", SPAN_MS)
async def test_a_reader_that_has_read_before_says_what_a_new_one_says(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, span: Span
) -> None:
    """In any order of events: late and grown samples, clocks that jump, workers that go."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    history = History(store, span, random.Random(seed))
    monkeypatch.setattr(past, "time", SimpleNamespace(time_ns=lambda: history.now * 1_000_000))
    reader = Past(history.samples)
    for _ in range(100):
        await history.go_on()
        assert await reader.read(span) == await Past(history.samples).read(span)
    await store.client.call("DEL", store.keys.samples(span))
    assert (await reader.read(span))[1] == {}


class History:
    """What a few workers store of one span, and a clock."""

    def __init__(self, store: SessionStore, span: Span, chance: random.Random) -> None:
        self.samples = Samples(store.client, store.keys)
        self.now = time.time_ns() // 1_000_000
        self._span, self._chance = span, chance
        self._step_ms = (STEP_SECONDS | LONG_STEP_SECONDS)[span] * 1000
        self._stored: list[Sample] = []

    async def go_on(self) -> None:
        chance = self._chance
        match chance.choice(("on time", "on time", "late", "early", "grown", "clock", "nothing")):
            case "on time":
                await self._add(self.now - chance.randrange(self._step_ms))
            case "late":
                await self._add(self.now - chance.randrange(SPAN_MS[self._span]))
            case "early":
                await self._add(self.now + chance.randrange(3 * self._step_ms))
            case "grown" if self._stored:
                before = chance.choice(self._stored)
                counts = {"errors": float(chance.randrange(9))}
                grown = msgspec.structs.replace(before, at=before.at + 1, counts=counts)
                await self._store(grown, replacing={msgspec.json.encode(before)})
            case "clock":
                self.now += chance.randrange(-2, 6) * self._step_ms

    async def _add(self, at: int) -> None:
        worker = sample(f"w{self._chance.randrange(4)}", counts={"errors": 1.0})
        times = {"ttft_ms": {"0.5": float(1 + self._chance.randrange(5)), "inf": 1.0}}
        await self._store(msgspec.structs.replace(worker, at=at, times=times), replacing=())

    async def _store(self, one: Sample, *, replacing: Collection[bytes]) -> None:
        body = msgspec.json.encode(one)
        await self.samples.add(self._span, one.at, body, replacing=replacing)
        self._stored.append(one)


async def test_a_step_is_counted_anew_only_when_its_samples_have_changed(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(samples: Sequence[Sample]) -> dict[str, float]:
        counted.append(len(samples))
        return point_of(samples)

    monkeypatch.setattr(past, "point_of", counting)
    samples = Samples(store.client, store.keys)
    reader, now = Past(samples), time.time_ns() // 1_000_000
    for worker, ago in (("a", 600_000), ("a", 1_200_000), ("b", 600_000)):
        one = msgspec.structs.replace(sample(worker), at=now - ago)
        await samples.add("24h", one.at, msgspec.json.encode(one))
        for _ in range(2):
            await reader.read("24h")
    assert counted == [1, 1, 2]
