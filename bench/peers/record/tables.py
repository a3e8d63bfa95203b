"""The tables of a run: what each engine did, and Parley beside the best of the others."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.peers.machine.terminal import console
from bench.peers.record.figures import (
    PARLEY,
    TARGETS,
    VALUE_BYTES,
    Comparison,
    Row,
    Summary,
    Target,
    compare,
    floor_rate,
    prefill_rate,
    summaries,
)


def show(rows: list[Row], known: dict[str, Any], is_quick: bool) -> None:
    """What each engine did, then Parley beside the best of the others.

    Targets are for full sizes: a quick run has none.
    """
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        show_engines(model, of_model, known.get(model))
        targets = [] if is_quick else TARGETS
        show_ratios(model, of_model, targets)
        show_floors(model, of_model, known.get(model), targets)


def show_engines(model: str, rows: list[Row], known: dict[str, Any] | None) -> None:
    found = summaries(rows)
    cases = {row.case: row for row in rows}
    table = Table(title=f"{model}: medians, and the range of the rounds")
    table.add_column("engine")
    table.add_column("case")
    for heading in ("median", "range", "rounds", "of the machine"):
        table.add_column(heading, justify="right")
    for engine in dict.fromkeys(row.engine for row in rows):
        for case, row in cases.items():
            if (summary := found.get((model, case, engine))) is None:
                continue
            share = share_of_machine(rows, engine, case, known)
            table.add_row(
                engine,
                case,
                f"{summary.median:.4g} {row.unit}",
                f"{summary.low:.4g} – {summary.high:.4g}",
                str(summary.count),
                "" if share is None else f"{100 * share.median:.0f} %",
            )
        table.add_section()
    console.print(table)


def share_of_machine(
    rows: list[Row], engine: str, case: str, known: dict[str, Any] | None
) -> Summary | None:
    """Of its memory for decodes, and for prompts of its multiplications."""
    of_memory = share_of_floor(rows, engine, case, known)
    return of_memory or share_of_multiplications(rows, engine, case, known)


def share_of_floor(
    rows: list[Row], engine: str, case: str, known: dict[str, Any] | None
) -> Summary | None:
    """How near a decode rate comes to what the memory of that moment allows."""
    prefix, _, context = case.partition("@")
    if known is None or prefix != "decode":
        return None
    shares = []
    for row in rows:
        if (row.engine, row.case) == (engine, case) and row.bandwidth:
            middle = int(context) + row.details["output_tokens"] // 2
            weight = known["weight_bytes"][engine]
            value = known.get("value_bytes", {}).get(engine, VALUE_BYTES)  # older records: none
            shape = (known["num_weights"], weight, known["kv_values"], middle, value)
            shares.append(row.value / floor_rate(row.bandwidth, *shape))
    return Summary.of(shares) if shares else None


def share_of_multiplications(
    rows: list[Row], engine: str, case: str, known: dict[str, Any] | None
) -> Summary | None:
    """How near a prompt comes to what the processors of that moment multiply in float32.

    There is none for weights in 8 bits, and instructions for bfloat16 can exceed 100 %.
    """
    prefix, _, num_tokens = case.partition("@")
    if prefix != "prefill" or known is None or "flops_per_token" not in known:  # older records
        return None
    of_prompt = known["flops_per_token"], known["flops_per_key"]
    shares = [
        row.value / prefill_rate(row.gigaflops, *of_prompt, int(num_tokens))
        for row in rows
        if (row.engine, row.case, row.family) == (engine, case, "bf16") and row.gigaflops
    ]
    return Summary.of(shares) if shares else None


RATIO_HEADINGS = ("case", "Parley", "best peer", "ratio", "of the rounds", "target", "")


def show_ratios(model: str, rows: list[Row], targets: Sequence[Target]) -> None:
    table = Table(title=f"{model}: Parley beside the best of the others")
    for heading in RATIO_HEADINGS:
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for one in compare(rows, targets):
        table.add_row(*ratio_cells(one))
    console.print(table)


def ratio_cells(one: Comparison) -> tuple[str, ...]:
    """What stands below `RATIO_HEADINGS`."""
    return (
        f"{one.case}, {one.own_engine.removeprefix(f'{PARLEY}:')}",
        f"{one.own.median:.4g} {one.unit}",
        "" if one.rival is None else f"{one.rival.median:.4g} {one.rival_engine}",
        "" if one.ratio is None else f"{one.ratio.median:.2f}",
        "" if one.ratio is None else f"{one.ratio.low:.2f} – {one.ratio.high:.2f}",
        wanted(one),
        one.verdict,
    )


def markdown(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> str:
    """The tables of ratios as documents have them, one for each model and kind of weights."""
    lines = []
    for model, family in dict.fromkeys((row.model, row.family) for row in rows):
        of_both = [row for row in rows if (row.model, row.family) == (model, family)]
        if found := compare(of_both, targets):
            lines += ["", f"{model}, weights of {family}'s kind:", ""]
            lines += [f"| {' | '.join(RATIO_HEADINGS)} |", "|---" * len(RATIO_HEADINGS) + "|"]
            lines += [f"| {' | '.join(ratio_cells(one))} |" for one in found]
    return "\n".join(lines)


def show_floors(
    model: str, rows: list[Row], known: dict[str, Any] | None, targets: Sequence[Target]
) -> None:
    """Parley's shares of the floor beside their targets; nothing where none is in the rows."""
    table = Table(title=f"{model}: Parley beside what the memory allows")
    table.add_column("case")
    for heading in ("of the floor", "of the rounds", "target", ""):
        table.add_column(heading, justify="right")
    for target in targets:
        engines = {row.engine for row in rows if row.peer == PARLEY and target.is_for(row)}
        for engine in sorted(engines) if target.kind == "floor" else ():
            share = share_of_floor(rows, engine, target.case, known)
            table.add_row(
                f"{target.case}, {engine.removeprefix(f'{PARLEY}:')}",
                "" if share is None else f"{share.median:.2f}",
                "" if share is None else f"{share.low:.2f} – {share.high:.2f}",
                f"≥ {target.limit:g}",
                floor_verdict(share, target),
            )
    if table.row_count:
        console.print(table)


def floor_verdict(share: Summary | None, target: Target) -> str:
    if share is None:
        return "no floor"  # the memory was not measured
    return "reached" if share.median >= target.limit else "MISSED"


def wanted(one: Comparison) -> str:
    """A target as text."""
    if one.target is None:
        return ""
    if one.target.kind == "absolute":
        return f"≤ {one.target.limit:g} {one.unit}"
    sign = "≥" if one.wants_more else "≤"
    rival = f" {one.target.rival}" if one.target.rival else ""
    return f"{sign} {one.target.limit:g}×{rival}"
