"""`make bench`: Parley over its websocket beside `transformers.generate`, taking turns in one run.

Absolute figures of a shared machine drift, so the peers alternate, every figure is a median over
rounds, and what counts is the ratio.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.harness.chats import load, stop_latencies
from bench.harness.report import RESULTS, machine, percentile
from bench.harness.servers import running_server
from bench.harness.transformers_peer import TransformersPeer
from engine import demo_model
from tests.end_to_end.site.harness import Server

LOADS = (1, 8, 16)


def main() -> None:
    arguments = parse_arguments()
    with running_server(arguments.model) as server, Progress(transient=True) as progress:
        peer = TransformersPeer(arguments.model)
        figures = asyncio.run(measure(server, peer, arguments, progress))
    figures["model"] = arguments.model.name
    figures["machine"] = machine()
    figures["torch"] = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    show(figures)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("bench-%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps(figures, indent=2) + "\n")
    Console().print(f"saved {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model(), help="folder of a checkpoint")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer")
    parser.add_argument("--tokens", type=int, default=128, help="length of each answer")
    parser.add_argument("--stops", type=int, default=200, help="stops at random moments")
    return parser.parse_args()


async def measure(
    server: Server, peer: TransformersPeer, arguments: argparse.Namespace, progress: Progress
) -> dict[str, Any]:
    """Every figure as a list, one entry per round."""
    ours: dict[int, list[float]] = {num_chats: [] for num_chats in LOADS}
    theirs: dict[int, list[float]] = {num_chats: [] for num_chats in LOADS}
    first: dict[int, list[float]] = {num_chats: [] for num_chats in LOADS}
    task = progress.add_task("rounds", total=(arguments.rounds + 1) * len(LOADS))
    for number in range(arguments.rounds + 1):
        for num_chats in LOADS:
            result = await load(server, num_chats, arguments.tokens)
            rate = peer.tokens_per_second(num_chats, arguments.tokens)
            progress.advance(task)
            if number:  # the first round warms both up
                ours[num_chats].append(result.tokens_per_second)
                theirs[num_chats].append(rate)
                first[num_chats].append(statistics.median(result.first_token_seconds))
    before = step_figures(server)
    stops = await stop_latencies(server, arguments.stops, seed=0)
    after = step_figures(server)
    return {
        "tokens_per_second": {
            str(n): {"parley": ours[n], "transformers": theirs[n]} for n in LOADS
        },
        "first_token_seconds": {str(n): first[n] for n in LOADS},
        "transformers_first_token_seconds": [
            peer.first_token_seconds() for _ in range(arguments.rounds)
        ],
        "stop_seconds": stops,
        "decode_step_seconds": (after[0] - before[0]) / max(1.0, after[1] - before[1]),
    }


def step_figures(server: Server) -> tuple[float, float]:
    """Sum and count of the core's decode steps."""
    name = "parley_decode_step_seconds"
    return server.metric(f"{name}_sum"), server.metric(f"{name}_count")


def show(figures: dict[str, Any]) -> None:
    table = Table(title=f"{figures['model']} on {figures['machine']}, {figures['torch']}")
    for heading in ("", "parley", "transformers", "ratio"):
        table.add_column(heading, justify="left" if not heading else "right")
    for num_chats, rates in figures["tokens_per_second"].items():
        ratios = [a / b for a, b in zip(rates["parley"], rates["transformers"], strict=True)]
        table.add_row(
            f"tokens/s, {num_chats} chat(s)",
            f"{statistics.median(rates['parley']):.0f}",
            f"{statistics.median(rates['transformers']):.0f}",
            f"{statistics.median(ratios):.2f}",
        )
    peer = statistics.median(figures["transformers_first_token_seconds"])
    for num_chats, seconds in figures["first_token_seconds"].items():
        own = statistics.median(seconds)
        shown = (f"{peer * 1e3:.1f}", f"{own / peer:.2f}") if num_chats == "1" else ("", "")
        table.add_row(f"first token ms, {num_chats} chat(s)", f"{own * 1e3:.1f}", *shown)
    stops = sorted(figures["stop_seconds"])
    if stops:
        worst = percentile(stops, 99)
        table.add_row("stop ms, p50", f"{statistics.median(stops) * 1e3:.1f}", "", "")
        table.add_row("stop ms, p99", f"{worst * 1e3:.1f}", "", "")
    table.add_row("decode step ms, mean", f"{figures['decode_step_seconds'] * 1e3:.1f}", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
