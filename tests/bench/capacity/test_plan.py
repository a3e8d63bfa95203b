"""What costs add up to, and that docs/deployment/capacity.md shows just that."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import pytest

from bench.capacity.plan import (
    BUSY,
    MEASURED,
    NEEDS,
    SLOW,
    Costs,
    Need,
    cluster_rows,
    cluster_tokens,
    plan,
    rows,
)
from tests.helpers.root import ROOT

PAGE = (ROOT / "docs" / "deployment" / "capacity.md").read_text()
FREE = Costs(**{each.name: 0.0 for each in fields(Costs)})


def table_after(words: str) -> list[str]:
    """The rows of the first table after these words."""
    lines = PAGE[PAGE.index(words) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    ends = (n for n, line in enumerate(lines) if n > start and not line.startswith("|"))
    return lines[start + 1 : next(ends, len(lines))]


def test_each_token_is_paid_at_a_worker_and_at_redis() -> None:
    costs = replace(FREE, token_us=60.0, token_redis_us=30.0)
    found = plan(costs, Need(streams=1000, rate=20))
    assert found.worker_processors == pytest.approx(1000 * 20 * 60e-6)
    assert found.redis_processors == pytest.approx(1000 * 20 * 30e-6)
    assert (found.workers, found.primaries) == (2, 1)


def test_workers_at_rest_are_paid_too() -> None:
    costs = replace(FREE, token_us=100.0, worker_rest_ms=100.0, worker_redis_ms=200.0)
    found = plan(costs, Need(streams=100, rate=50))  # half a processor of tokens, 0.1 at rest
    assert found.workers == math.ceil(0.5 / (BUSY - 0.1)) == 1
    assert found.worker_processors == pytest.approx(0.6)
    assert found.redis_processors == pytest.approx(0.2)


def test_sessions_take_memory_and_what_was_used_lately_takes_more() -> None:
    costs = replace(FREE, session_kib=4.0, character_bytes=1.024, log_kib=8.0, answer_kib=6.0)
    rest = plan(costs, Need(sessions=1_000_000, characters=1000))
    assert rest.redis_gib == pytest.approx(5_000_000 / 2**20)
    busy = plan(costs, Need(sessions=1_000_000, characters=1000, streams=100, rate=30))
    answers = 100 * 30 / 300  # in a second
    more = answers * 3600 * 8 + (answers * 600 + 100) * 6
    assert busy.redis_gib == pytest.approx((5_000_000 + more) / 2**20)


def test_memory_alone_can_ask_for_another_redis() -> None:
    costs = replace(FREE, session_kib=5.0)
    assert plan(costs, Need(sessions=4_000_000, characters=0)).primaries == 1
    assert plan(costs, Need(sessions=8_000_000, characters=0)).primaries == 2


def test_a_cluster_carries_no_more_than_what_each_of_its_nodes_hears_of_all() -> None:
    costs = replace(FREE, cluster_us=30.0, cluster_node_us=10.0)
    assert cluster_tokens(costs, 3) == pytest.approx(3 * BUSY / 60e-6)
    carried = [cluster_tokens(costs, size) for size in (3, 30, 300, 3000)]
    assert carried == sorted(carried)
    assert carried[-1] < BUSY / 10e-6


def test_the_page_shows_what_the_costs_add_up_to() -> None:
    assert table_after("at 30 tokens/s:") == rows(MEASURED)
    slowly = [replace(need, rate=SLOW) for need in NEEDS]
    assert table_after("and at 10 tokens/s") == rows(MEASURED, slowly)
    assert table_after("## A cluster holds more") == cluster_rows(MEASURED)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("| a worker |", ("worker_mib", "worker_rest_ms", "worker_redis_ms")),
        ("| an open page", ("socket_kib", "socket_us", "socket_redis_us")),
        ("| an answer", ("answer_kib", "answer_ms", "answer_redis_ms")),
        ("| each token", ("token_us", "token_redis_us")),
        ("| a stream", ("stream_kib",)),
        ("| a session of six", ("session_kib", "character_bytes")),
        ("| the same within an hour", ("log_kib",)),
    ],
)
def test_the_costs_on_the_page_are_those_that_are_added_up(row: str, names: tuple[str]) -> None:
    (line,) = [line for line in table_after("## What each takes") if line.startswith(row)]
    cells = line.split("|")[2:]
    found = [
        float(number)
        for number in re.findall(r"(\d+(?:\.\d+)?) (?:[MK]iB|[mµ]s|bytes)", "|".join(cells))
    ]
    assert [getattr(MEASURED, name) for name in names] == found[: len(names)]


def test_the_sums_on_the_page_name_the_same_costs() -> None:
    (sums,) = re.findall(r"```\n(workers .*?)```", PAGE, re.S)
    named = {float(number) for number in re.findall(r"(\d+(?:\.\d+)?) (?:µs|ms|KiB|B)\b", sums)}
    left_out = {"worker_mib", "worker_rest_ms", "socket_kib", "stream_kib"}
    left_out |= {"cluster_us", "cluster_node_us"}
    assert named == {
        getattr(MEASURED, each.name) for each in fields(Costs) if each.name not in left_out
    }
    assert f"{MEASURED.worker_rest_ms / 1000:g}" in sums
