"""`python -m bench.embeddings`: texts embedded, beside the same texts read for a first token.

Both are the same pass over the model, but for the output layer and what becomes of its rows. So the
rate of embeddings is compared with the prefill rate of generation, in turns, on a real core through
`LLM`. Prefixes are not cached: each round reads the same texts.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.progress import track

from bench.harness.report import Figure, report
from bench.peers.machine.environments import cache_folder
from bench.peers.models import checkpoint
from engine import LLM, PoolingParams, SamplingParams

NUM_TEXTS, NUM_TOKENS = 64, 128
MIN_SHARE = 0.9  # of the prefill rate
KINDS = ("LAST", "MEAN")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.embeddings", description=__doc__)
    parser.add_argument("--model", default="m1", help="as for bench.peers: m1, m2 or a folder")
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of each text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    model = checkpoint(arguments.model, cache_folder())
    with LLM(
        str(model.folder),
        threads=arguments.threads,
        enable_prefix_caching=False,
        max_num_seqs=arguments.texts,
        max_model_len=max(2048, 2 * arguments.tokens),
        max_num_queued_reqs=None,
    ) as llm:
        figures = measure(llm, arguments.texts, arguments.tokens, arguments.rounds)
    report("embeddings", figures)


def measure(llm: LLM, num_texts: int, num_tokens: int, num_rounds: int) -> list[Figure]:
    """The rates in medians of rounds in turns, and what an embedding costs of a prefill."""
    texts = make_texts(llm.model_config.get_vocab_size(), num_texts, num_tokens)
    first = SamplingParams(max_tokens=1, temperature=0)
    ways: dict[str, Callable[[], Any]] = {
        "prefill": lambda: llm.generate(texts, first, use_tqdm=False),
        **{kind: _embed(llm, texts, kind) for kind in KINDS},
    }
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in track(range(num_rounds), description="rounds", transient=True):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    num = num_texts * num_tokens
    figures = [
        Figure(f"{name}, rate", num / each, None, "tokens/s") for name, each in medians.items()
    ]
    costs = [
        Figure(f"{kind}, time of prefill's", medians[kind] / medians["prefill"], 1 / MIN_SHARE, "")
        for kind in KINDS
    ]
    return figures + costs


def make_texts(vocab_size: int, num_texts: int, num_tokens: int) -> list[list[int]]:
    """Random ids, without special tokens, which are the lowest or the highest."""
    rng = random.Random(0)
    low, high = min(300, vocab_size // 3), 2 * vocab_size // 3
    return [[rng.randrange(low, high) for _ in range(num_tokens)] for _ in range(num_texts)]


def _embed(llm: LLM, texts: list[list[int]], kind: str) -> Callable[[], Any]:
    params = PoolingParams(pooling_type=kind)
    return lambda: llm.encode(texts, params, use_tqdm=False)


if __name__ == "__main__":
    main()
