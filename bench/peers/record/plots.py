"""PNG curves of a recorded run: `python -m bench.peers.record.plots peers.json FOLDER`.

Runs in an environment of its own that has matplotlib, so of this package it imports only what needs
nothing else.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.ticker import NullLocator

from bench.peers.record.figures import PARLEY, Row, Summary, summaries
from bench.peers.record.record import Record

COLORS = {  # distinct for colour-blind eyes, too (Okabe and Ito)
    PARLEY: "#d55e00",
    "llama.cpp": "#0072b2",
    "llama.cpp-split": "#56b4e9",
    "openvino": "#009e73",
    "vllm": "#cc79a7",
    "transformers": "#7a7a7a",
}
MARKERS = ("o", "s", "^", "D")
FAMILIES = {
    "bf16": "weights in 16 or 32 bits",
    "int8": "weights in 8 bits",
    "int4": "weights in 4 bits",
}
INK, FAINT = "#222222", "#dddddd"


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    rows = Record.read(source).rows
    pyplot.switch_backend("Agg")
    pyplot.rcParams.update(
        {
            "font.size": 10,
            "font.family": "DejaVu Sans",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "legend.frameon": False,
        }
    )
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        stem = folder / f"{source.stem}-{model}"
        curves(
            of_model, "burst@", f"{stem}-bursts.png", "chats at once", "tokens/s of all together"
        )
        curves(of_model, "decode@", f"{stem}-decode.png", "tokens of context", "tokens/s")
        turns(of_model, f"{stem}-turns.png")


def curves(rows: Sequence[Row], prefix: str, path: str, across: str, up: str) -> None:
    """A line for each engine over the numbers after `prefix`; whiskers are the rounds' range."""
    found: dict[str, dict[str, dict[float, Summary]]] = {}
    families = {row.engine: row.family for row in rows}
    for (_, case, engine), summary in summaries(rows).items():
        if case.startswith(prefix):
            lines = found.setdefault(families[engine], {}).setdefault(engine, {})
            lines[float(case.removeprefix(prefix))] = summary
    panels(found, path, across, up)


def turns(rows: Iterable[Row], path: str) -> None:
    """Time to the first token, by turn of a chat."""
    values: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in rows:
        if row.case.startswith("chat@"):
            line = values.setdefault(row.family, {}).setdefault(row.engine, {})
            for number, first in enumerate(row.details["first_ms_by_turn"], 1):
                line.setdefault(float(number), []).append(first / 1e3)
    found = {
        family: {
            engine: {turn: Summary.of(seconds) for turn, seconds in line.items()}
            for engine, line in lines.items()
        }
        for family, lines in values.items()
    }
    panels(found, path, "turn of the chat", "seconds to the first token")


def panels(
    found: dict[str, dict[str, dict[float, Summary]]], path: str, across: str, up: str
) -> None:
    """One panel for each family that has anything."""
    families = [family for family in FAMILIES if family in found]
    if not families:
        return
    figure, axes = pyplot.subplots(
        1, len(families), figsize=(4.6 * len(families) + 0.6, 4.6), sharey=True, squeeze=False
    )
    for axis, family in zip(axes[0], families, strict=True):
        draw(axis, found[family])
        axis.set_title(FAMILIES[family])
        axis.set_xlabel(across)
    axes[0][0].set_ylabel(up)
    axes[0][0].set_ylim(bottom=0)  # when both panels have their lines: they share the scale
    figure.tight_layout()
    figure.savefig(path, dpi=144, facecolor="white")
    pyplot.close(figure)
    print(path)


def draw(axis: Any, lines: dict[str, dict[float, Summary]]) -> None:
    used: dict[str, int] = {}
    for engine, line in lines.items():
        peer, _, precision = engine.partition(":")
        number = used[peer] = used.get(peer, -1) + 1
        across = sorted(line)
        middle = [line[x].median for x in across]
        lower = [line[x].median - line[x].low for x in across]
        upper = [line[x].high - line[x].median for x in across]
        axis.errorbar(
            across,
            middle,
            yerr=[lower, upper],
            label=f"{peer} {precision}",
            color=COLORS.get(peer, INK),
            marker=MARKERS[number % len(MARKERS)],
            linestyle="-" if number == 0 else "--",
            linewidth=2.2 if peer == PARLEY else 1.4,
            markersize=5,
            capsize=2,
        )
    ticks = sorted({x for line in lines.values() for x in line})
    if ticks[-1] > 4 * ticks[0]:
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{x:,.0f}" for x in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(axis="y", color=FAINT, linewidth=0.8)
    axis.set_axisbelow(True)
    below = (-0.02, -0.16)  # where no line can run through it
    axis.legend(fontsize=9, ncols=2, loc="upper left", bbox_to_anchor=below)


if __name__ == "__main__":
    main()
