"""`python -m bench.adapters`: answers with LoRA adapters, beside the same answers without one.

The adapters are random, of rank 16 on all linear layers of a decoder. All ways of asking take turns
on one real core through `LLM`, with the same prompts and as many tokens. Prefixes are not cached:
each round reads its prompts again.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import track

from bench.harness.report import Figure, report
from bench.peers.machine.environments import cache_folder
from bench.peers.models import checkpoint
from engine import LLM, LoRARequest, SamplingParams
from tests.engine.helpers.lora.adapters import build_adapter

NUM_CHATS, NUM_PROMPT_TOKENS, NUM_TOKENS = 16, 16, 64
NUM_ADAPTERS, RANK = 4, 16
MIN_SHARES = {1: 0.9, NUM_ADAPTERS: 0.85}  # of the speed without one, by different adapters


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.adapters", description=__doc__)
    parser.add_argument("--model", default="m1", help="as for bench.peers: m1, m2 or a folder")
    parser.add_argument("--chats", type=int, default=NUM_CHATS, help="at once")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of each answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    model = checkpoint(arguments.model, cache_folder()).folder
    with tempfile.TemporaryDirectory() as folder:
        adapters = make_adapters(model, Path(folder))
        with LLM(
            str(model),
            threads=arguments.threads,
            enable_prefix_caching=False,
            enable_lora=True,
            max_loras=NUM_ADAPTERS,
            max_lora_rank=RANK,
            max_num_seqs=arguments.chats,
            max_model_len=2048,
            max_num_queued_reqs=None,
        ) as llm:
            figures = measure(llm, adapters, arguments.chats, arguments.tokens, arguments.rounds)
    report("adapters", figures)


def make_adapters(model: Path, folder: Path) -> list[LoRARequest]:
    """Random adapters of a model, written to a folder, with small numbers."""
    return [
        LoRARequest(
            f"random-{number}",
            number,
            str(build_adapter(folder / str(number), model, seed=number, rank=RANK, size=0.02)),
        )
        for number in range(1, NUM_ADAPTERS + 1)
    ]


def measure(
    llm: LLM, adapters: Sequence[LoRARequest], num_chats: int, num_tokens: int, num_rounds: int
) -> list[Figure]:
    """Tokens/s in medians of rounds in turns, and what a token costs of one without adapters."""
    figures: list[Figure] = []
    for chats in sorted({1, num_chats}):
        kinds = [count for count in MIN_SHARES if count <= min(chats, len(adapters))]
        ways: dict[int, list[LoRARequest | None]] = {0: [None] * chats}
        for count in kinds:
            ways[count] = [adapters[chat % count] for chat in range(chats)]
        medians = _take_turns(llm, ways, num_tokens, num_rounds)
        for count, seconds in medians.items():
            rate = chats * num_tokens / seconds
            figures.append(Figure(_what(chats, count) + ", rate", rate, None, "tokens/s"))
        for count in kinds:
            cost = medians[count] / medians[0]
            what = _what(chats, count) + ", time of that without"
            figures.append(Figure(what, cost, 1 / MIN_SHARES[count], ""))
    return figures


def _take_turns(
    llm: LLM, ways: Mapping[int, list[LoRARequest | None]], num_tokens: int, num_rounds: int
) -> dict[int, float]:
    """The median seconds of each way to ask, by its number of adapters."""
    prompts = _prompts(llm.model_config.get_vocab_size(), len(ways[0]))
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    seconds: dict[int, list[float]] = {count: [] for count in ways}
    for turn in track(range(num_rounds + 1), description="rounds", transient=True):
        for count, requests in ways.items():
            started = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False, lora_request=requests)
            if turn:  # the first one reads the adapters
                seconds[count].append(time.perf_counter() - started)
    return {count: statistics.median(each) for count, each in seconds.items()}


def _what(num_chats: int, num_adapters: int) -> str:
    chats = "1 chat" if num_chats == 1 else f"{num_chats} chats"
    return f"{chats}, {num_adapters or 'no'} adapter{'' if num_adapters == 1 else 's'}"


def _prompts(vocab_size: int, count: int) -> list[list[int]]:
    """Random ids, without special tokens, which are the lowest or the highest."""
    rng = random.Random(0)
    low, high = min(300, vocab_size // 3), 2 * vocab_size // 3
    return [[rng.randrange(low, high) for _ in range(NUM_PROMPT_TOKENS)] for _ in range(count)]


if __name__ == "__main__":
    main()
