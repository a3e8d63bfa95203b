"""Rows of readings → medians, ranges, ratios of Parley to the best peer, beside their targets.

Knows nothing of engines: it works on rows of a running program and on those of a file alike.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

PARLEY = "parley"
EIGHT_BITS = ("int8", "q8_0")
FOUR_BITS = ("int4", "q4_0", "q4_k_m")
VALUE_BYTES = 2.0  # of a number of keys and values, where nobody said


def family(precision: str) -> str:
    """Weights in 4 bits are compared with each other; those in 8, and in 16 and 32, likewise."""
    weights = weights_of(precision)
    if weights in FOUR_BITS:
        return "int4"
    return "int8" if weights in EIGHT_BITS else "bf16"


def weights_of(precision: str) -> str:
    """Of `bf16-kv8`, weights in bf16 with keys and values in 8 bits, the first half."""
    return precision.partition("-")[0]


def cache_of(precision: str) -> str:
    """The other half; empty where keys and values are as the engine has them by default."""
    return precision.partition("-")[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One reading of one engine, and the state of the machine in that turn."""

    round: int
    model: str
    peer: str
    precision: str
    case: str
    value: float
    unit: str
    bandwidth: float | None = None  # GB/s that the memory gave just before
    foreign_cores: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    gigaflops: float | None = None  # GFLOP/s of float32 that the processors did just before

    @property
    def engine(self) -> str:
        return f"{self.peer}:{self.precision}"

    @property
    def family(self) -> str:
        return family(self.precision)

    @property
    def cache(self) -> str:
        return cache_of(self.precision)


@dataclass(frozen=True, slots=True)
class Summary:
    """One engine in one case, over the rounds."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Target:
    """What Parley must reach: a ratio to a rival, a value by itself, or a share of the floor."""

    model: str
    case: str
    family: str
    limit: float
    rival: str | None = None  # a peer's name; None is the best of all
    kind: Literal["ratio", "absolute", "floor"] = "ratio"
    cache: str = ""  # of Parley; rivals have theirs

    def is_for(self, row: Row) -> bool:
        wanted = (self.model, self.case, self.family, self.cache)
        return wanted == (row.model, row.case, row.family, row.cache)


def both(case: str, bf16: float, int8: float) -> list[Target]:
    return [Target("m1", case, "bf16", bf16), Target("m1", case, "int8", int8)]


TARGETS = [
    *both("decode@128", 1.1, 1.5),
    *both("decode@2048", 1.05, 1.5),
    Target("m1", "decode@2048", "bf16", 1.15, cache="kv8"),
    Target("m1", "decode@2048", "int8", 1.5, cache="kv8"),
    *both("burst@4", 1.15, 1.7),
    *both("burst@8", 1.35, 1.7),
    *both("burst@16", 1.5, 1.7),
    *both("burst@32", 1.5, 1.7),
    *both("prefill@1024", 1.15, 1.3),
    *both("chat@8x4", 0.65, 0.55),
    *both("first of turn 4@8x4", 0.5, 0.5),
    Target("m1", "decode@128", "int4", 1.15),
    Target("m1", "burst@16", "int4", 2.0),
    Target("m2", "decode@128", "bf16", 1.1, rival="llama.cpp"),
    Target("m2", "burst@16", "bf16", 1.5, rival="vllm"),
    *(
        Target(model, case, family, limit, kind="absolute")
        for model in ("m1", "m2")
        for case, limit in (
            ("gap beside 1024", 3.0),
            ("quiet behind one step", 5.0),
            ("lost by websocket@16", 5.0),
            ("lost by events@16", 5.0),
        )
        for family in ("bf16", "int8")
    ),
    Target("m1", "decode@128", "bf16", 0.92, kind="floor"),
    Target("m1", "decode@128", "int8", 0.85, kind="floor"),
]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Parley in one case and family; `ratio` is the median of the rounds' ratios."""

    model: str
    case: str
    family: str
    unit: str
    own: Summary
    own_engine: str
    rival: Summary | None
    rival_engine: str | None
    ratio: Summary | None
    target: Target | None

    @property
    def wants_more(self) -> bool:
        return self.unit == "tok/s"

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        is_absolute = self.target.kind == "absolute"
        reached = self.own if is_absolute else self.ratio
        if reached is None:
            return "no rival"
        limit = self.target.limit
        is_reached = reached.median <= limit
        if self.wants_more and not is_absolute:
            is_reached = reached.median >= limit
        return "reached" if is_reached else "MISSED"


def summaries(rows: Iterable[Row]) -> dict[tuple[str, str, str], Summary]:
    """(model, case, engine) → its values."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row.model, row.case, row.engine), []).append(row.value)
    return {key: Summary.of(found) for key, found in values.items()}


def compare(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> list[Comparison]:
    """Every case that Parley has with each kind of cache, in the order in which it came."""
    cases = dict.fromkeys(
        (row.model, row.case, row.family, row.cache) for row in rows if row.peer == PARLEY
    )
    comparisons = []
    for *case, cache in cases:
        alike = [row for row in rows if [row.model, row.case, row.family] == case]
        chosen = [row for row in alike if row.peer != PARLEY or row.cache == cache]
        comparisons.append(compare_case(chosen, targets))
    return comparisons


def compare_case(rows: Sequence[Row], targets: Sequence[Target]) -> Comparison:
    """All rows are of one model, case and family, and all of Parley's of one kind of cache."""
    of_parley = [row for row in rows if row.peer == PARLEY]
    one = of_parley[0]
    wanted = (one.model, one.case, one.family)
    target = next((t for t in targets if t.kind != "floor" and t.is_for(one)), None)
    wants_more = one.unit == "tok/s"
    own_engine, own = best(of_parley, wants_more)
    name = target.rival if target else None
    rivals = [
        row
        for row in rows
        if row.peer != PARLEY and (name is None or row.peer.removesuffix("-split") == name)
    ]
    if not rivals:
        return Comparison(*wanted, one.unit, own, own_engine, None, None, None, target)
    rival_engine, rival = best(rivals, wants_more)
    ratios = ratios_by_round(rows, own_engine, rival_engine)
    ratio = Summary.of(ratios) if ratios else None
    return Comparison(*wanted, one.unit, own, own_engine, rival, rival_engine, ratio, target)


def best(rows: Sequence[Row], wants_more: bool) -> tuple[str, Summary]:
    """The engine with the best median."""
    engines = {engine: summary for (_, _, engine), summary in summaries(rows).items()}
    choose = max if wants_more else min
    name = choose(engines, key=lambda engine: engines[engine].median)
    return name, engines[name]


def ratios_by_round(rows: Sequence[Row], own: str, rival: str) -> list[float]:
    """Of rounds in which both had a turn: what changes by the minute is in both."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row.round, {})[row.engine] = row.value
    pairs = [(found.get(own), found.get(rival)) for found in by_round.values()]
    return [a / b for a, b in pairs if a is not None and b]


def floor_rate(
    bandwidth: float,
    num_weights: int,
    weight_bytes: float,
    kv_values: int,
    context: int,
    value_bytes: float = VALUE_BYTES,
) -> float:
    """Tokens/s of one stream if a step took as long as reading weights and keys and values does.

    `value_bytes`: of a key's or value's number, with its share of a scale.
    """
    return bandwidth * 1e9 / (num_weights * weight_bytes + value_bytes * kv_values * context)


def prefill_rate(
    gigaflops: float, flops_per_token: int, flops_per_key: int, num_tokens: int
) -> float:
    """Tokens/s of a prompt whose multiplications are all of float32, and nothing else takes time.

    `flops_per_key`: of a token, for each key that it attends to.
    """
    per_token = flops_per_token + flops_per_key * (num_tokens + 1) / 2
    return gigaflops * 1e9 / per_token
