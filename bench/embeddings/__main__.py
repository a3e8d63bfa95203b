"""`python -m bench.embeddings`: texts embedded, beside the same texts read for a first token.

Both are the same pass over the model, but for the output layer and what becomes of its rows. So the
rate of embeddings is compared with the prefill rate of generation, in turns, on a real core through
`LLM`. Prefixes are not cached: each round reads the same texts. `--peer` adds sentence-transformers
with the same checkpoint and texts, in an environment of its own, which is made when it is missing.
"""

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import track

from bench.embeddings.peer import SentenceTransformers
from bench.harness.report import Figure, report
from bench.peers.load.prompts import Prompts
from bench.peers.machine.environments import cache_folder
from bench.peers.models import checkpoint
from engine import LLM, PoolingParams, SamplingParams

NUM_TEXTS, NUM_TOKENS = 64, 128
MIN_SHARE = 0.9  # of the prefill rate
KINDS = ("LAST", "MEAN")
PEER = "sentence-transformers"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.embeddings", description=__doc__)
    parser.add_argument("--model", default="m1", help="as for bench.peers: m1, m2 or a folder")
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of each text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peer", action="store_true", help="beside sentence-transformers")
    arguments = parser.parse_args()
    folder = checkpoint(arguments.model, cache_folder()).folder
    texts = make_texts(folder, arguments.texts, arguments.tokens)
    with contextlib.ExitStack() as stack:
        llm = stack.enter_context(
            LLM(
                str(folder),
                threads=arguments.threads,
                enable_prefix_caching=False,
                max_num_seqs=arguments.texts,
                max_model_len=max(2048, 2 * arguments.tokens),
                max_num_queued_reqs=None,
            )
        )
        peer = None
        if arguments.peer:
            peer = stack.enter_context(SentenceTransformers(folder, texts, arguments.threads))
        figures = measure(llm, texts, arguments.tokens, arguments.rounds, peer)
    report("embeddings", figures)


def measure(
    llm: LLM,
    texts: list[str],
    num_tokens: int,
    num_rounds: int,
    peer: SentenceTransformers | None = None,
) -> list[Figure]:
    """The rates in medians of rounds in turns, and what an embedding costs of a prefill.

    Raises ValueError if the peer's first embedding points elsewhere than ours.
    """
    first = SamplingParams(max_tokens=1, temperature=0)
    ways: dict[str, Callable[[], Any]] = {
        "prefill": lambda: llm.generate(texts, first, use_tqdm=False),
        **{kind: _embed(llm, texts, kind) for kind in KINDS},
    }
    if peer is not None:
        peer.check(llm.encode(texts[0], PoolingParams(pooling_type="LAST"), use_tqdm=False))
        ways[PEER] = peer.embed
    medians = _take_turns(ways, num_rounds)
    num = len(texts) * num_tokens
    figures = [
        Figure(f"{name}, rate", num / each, None, "tokens/s") for name, each in medians.items()
    ]
    figures += [
        Figure(f"{kind}, time of prefill's", medians[kind] / medians["prefill"], 1 / MIN_SHARE, "")
        for kind in KINDS
    ]
    if peer is not None:
        figures.append(Figure(f"LAST, time of {PEER}'s", medians["LAST"] / medians[PEER], 1, ""))
    return figures


def _take_turns(ways: Mapping[str, Callable[[], Any]], num_rounds: int) -> dict[str, float]:
    """The median seconds of each way."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in track(range(num_rounds), description="rounds", transient=True):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in seconds.items()}


def make_texts(folder: Path, num_texts: int, num_tokens: int) -> list[str]:
    """Texts of so many tokens each, the same ones each time. Raises ValueError without words."""
    prompts = Prompts(folder, seed=0)
    return [prompts.text(num_tokens) for _ in range(num_texts)]


def _embed(llm: LLM, texts: list[str], kind: str) -> Callable[[], Any]:
    params = PoolingParams(pooling_type=kind)
    return lambda: llm.encode(texts, params, use_tqdm=False)


if __name__ == "__main__":
    main()
