"""What the benchmarks of the server have in common: achieved beside target, and where and when."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; the target is the most that it may be."""

    what: str
    achieved: float
    target: float | None
    unit: str

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "reached" if self.achieved <= self.target else "MISSED"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def latencies(what: str, seconds: Sequence[float], target_ms: float | None) -> list[Figure]:
    """The usual three of a latency; the target is that of the 99th percentile."""
    return [
        Figure(f"{what}, p50", percentile(seconds, 50) * 1e3, None, "ms"),
        Figure(f"{what}, p99", percentile(seconds, 99) * 1e3, target_ms, "ms"),
        Figure(f"{what}, max", max(seconds) * 1e3, None, "ms"),
    ]


def machine() -> str:
    """Its processors, and the widest vectors of theirs that csrc has kernels for."""
    path = Path("/proc/cpuinfo")  # of Linux
    text = path.read_text() if path.exists() else ""
    parts = (line.partition(":") for line in text.splitlines())
    entries = {key.strip(): value.strip() for key, _, value in parts}
    flags = entries.get("flags", "").split()
    level = [flag for flag in ("avx512_bf16", "avx512f", "avx2") if flag in flags][:1]
    name = entries.get("model name", platform.machine())
    return ", ".join([name, f"{os.cpu_count()} CPUs", *level])


def report(name: str, figures: Sequence[Figure]) -> None:
    """Print a table and keep the numbers in `bench/results/`."""
    where = f"{machine()}, load {os.getloadavg()[0]:.1f}"
    table = Table(title=f"bench.{name} on {where}")
    for heading in ("", "achieved", "target", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for figure in figures:
        target = "" if figure.target is None else f"≤ {figure.target:.4g} {figure.unit}"
        table.add_row(figure.what, f"{figure.achieved:.4g} {figure.unit}", target, figure.verdict)
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime(f"{name}-%Y%m%d-%H%M%S.json")
    result = {"where": where, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    Console().print(f"saved {path}")
