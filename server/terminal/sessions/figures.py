"""How the server is, in lines: engine, Redis and workers, and the console's figures.

Words and rules only; nothing here is drawn or asked for. What workers call themselves is a word of
theirs, and goes through `printable`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from server.terminal.text import UNBOUNDED_WIDTH, printable

Line = list[tuple[str, str]]  # style and text, as prompt_toolkit has them
Stats = Mapping[str, Any]

GOOD, BAD, FAINT, PLAIN = "class:good", "class:bad", "class:faint", ""
STALE_SECONDS = 3.0
SILENT_MS = 8000  # a worker reports every 3 s
MAX_NAMED = 3  # workers in one line
BARS = "▁▂▃▄▅▆▇█"
NUM_BARS = 30
BETWEEN = " · "


def health_line(
    stats: Stats | None, problem: str | None, age_seconds: float, width: int = UNBOUNDED_WIDTH
) -> Line:
    """Engine, Redis and workers; and how old all of this is, if it is old."""
    line: Line = []
    if problem is not None:
        line.append((BAD, printable(problem)))
    if stats is not None:
        line += [] if problem is not None else [(GOOD, "Redis answers")]
        line += _engines(stats["replicas"])
        line += _workers(stats)
    if stats is not None and age_seconds > STALE_SECONDS:
        line.append((BAD, f"these figures are {duration(int(age_seconds * 1000))} old"))
    return _joined(line, width)


def _engines(workers: Sequence[Mapping[str, Any]]) -> Line:
    """Each worker has an engine; those of a host share one."""
    away = [worker for worker in workers if worker["engine"] != "ok"]
    if not workers:
        return [(BAD, "no worker")]
    if not away:
        return [(GOOD, "engine ok")]
    states = {"stalled": "makes no progress", "unavailable": "is away"}
    return [
        (BAD, f"the engine of {short_worker(one['id'])} {states.get(one['engine'], 'is not well')}")
        for one in away[:MAX_NAMED]
    ]


def _workers(stats: Stats) -> Line:
    count = len(stats["replicas"])
    line: Line = [(PLAIN, f"{count} {'worker' if count == 1 else 'workers'}")]
    draining = sum(bool(worker["draining"]) for worker in stats["replicas"])
    if draining:
        line.append((BAD, f"{draining} draining"))
    for worker in stats["missing"][:MAX_NAMED]:
        silent = duration(max(0, stats["now"] - worker["seen_at"]))
        line.append((BAD, f"worker {short_worker(worker['id'])} silent for {silent}"))
    return line


def figures_line(stats: Stats | None, width: int = UNBOUNDED_WIDTH) -> Line:
    """As the console has them: the newest value of each series that was measured."""
    if stats is None:
        return []
    live, series = stats["live"], stats["series"]
    rates = series.get("decode_tokens_per_s", [])
    line: Line = [(PLAIN, f"{newest(rates) or 0:,.0f} tokens/s {bars(rates, width // 2)}".rstrip())]
    queued, active = live["queued_responses"], live["active_responses"]
    line.append((PLAIN, f"{max(0, active - queued)} running"))
    line.append((PLAIN, f"{queued} waiting"))
    if (first := newest(series.get("ttft_ms.p50", []))) is not None:
        high = newest(series.get("ttft_ms.p95", []))
        more = f" (p95 {milliseconds(high)})" if high is not None else ""
        line.append((PLAIN, f"first token {milliseconds(first)}{more}"))
    if (used := newest(series.get("kv_usage", []))) is not None:
        line.append((PLAIN, f"KV {used * 100:.0f} %"))
    for name in ("connections", "sessions"):
        line.append((PLAIN, f"{live[name]:,} {name if live[name] != 1 else name[:-1]}"))
    return _joined(line, width)


def newest(values: Sequence[float | None]) -> float | None:
    """The last value that was measured."""
    return next((value for value in reversed(values) if value is not None), None)


def bars(values: Sequence[float | None], most_bars: int = NUM_BARS) -> str:
    """The last values as a row of bars; a space where none was measured."""
    last = values[-min(NUM_BARS, max(1, most_bars)) :]
    most = max((value for value in last if value is not None), default=0.0)
    if most <= 0:
        return ""
    step = len(BARS) - 1
    return "".join(" " if one is None else BARS[round(one / most * step)] for one in last)


def milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.0f} s"


def duration(milliseconds: int) -> str:
    """A time span in at most two units."""
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"


def short_worker(replica: str) -> str:
    """host-pid-random: the process distinguishes the workers of one host."""
    host, _, rest = replica.rpartition("-")
    host, _, process = host.rpartition("-")
    return printable(f"{host} · {process}" if host and rest else replica)


def _joined(line: Line, width: int) -> Line:
    """With a dot between two, or where that is too wide, the second on a line of its own."""
    joined: Line = []
    used = 0
    for style, text in line:
        fits = used + len(BETWEEN) + len(text) <= width
        if joined:
            joined.append((FAINT, BETWEEN if fits else "\n"))
        used = used + len(BETWEEN) + len(text) if joined and fits else len(text)
        joined.append((style, text))
    return joined
