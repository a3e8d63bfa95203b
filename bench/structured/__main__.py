"""`python -m bench.structured`: steps whose rows keep to a grammar beside steps without.

Rounds of both take turns on one engine, so that what else the machine does meets both. Wall time is
that of a step; processor time is of the core and of the process that makes its masks together.
Last, how long a matcher takes to read 1,000 tokens at once, as after a death.
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

import llguidance
import psutil
import torch
from rich.console import Console
from rich.table import Table

from bench.harness.report import machine
from bench.peers.machine.environments import cache_folder
from bench.peers.models import checkpoint
from engine import StructuredOutputsParams
from engine.core.structured.compiling import compile_source
from engine.core.structured.frames import Source
from tests.engine.helpers.stepped_engine import SteppedEngine

NUM_STEPS = 16  # of a round
CONTEXT = 128
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 200},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "minLength": 200},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "tags", "address"],
}
FORMS = {
    "none": None,
    "json_schema": {"json": SCHEMA},
    "json": {"json": {"type": "array", "items": {"type": "object"}, "minItems": 200}},
    "regex": {"regex": r"([a-z]{2,9} ){600}"},
    "digits": {"regex": "[0-9]{1000}"},  # which random weights never choose of their own accord
}


class Rounds:
    """One engine that takes steps of one kind after the other."""

    def __init__(
        self, folder: Any, num_chats: int, temperature: float, settings: dict[str, Any]
    ) -> None:
        self._engine = SteppedEngine(
            folder,
            max_model_len=1024,
            max_num_seqs=num_chats,
            kv_cache_memory_bytes=1200 << 20,
            max_num_batched_tokens=2048,
            max_step_seconds=0.0,
            **settings,
        )
        self._num_chats = num_chats
        self._temperature = temperature
        self._number = 0

    def measure(self, form: dict[str, Any] | None) -> list[tuple[float, float, float]]:
        """Of each step: seconds of the clock, of the core's processor, of the masker's."""
        engine, asked = self._engine, None
        if form is not None:
            asked = StructuredOutputsParams(**form)
        self._number += 1
        names = [f"{self._number}-{chat}" for chat in range(self._num_chats)]
        prompt = list(range(300, 300 + CONTEXT))  # one for all: it is read once
        for chat, name in enumerate(names):
            engine.add(
                name,
                prompt,
                max_tokens=NUM_STEPS + 8,
                temperature=self._temperature,
                seed=chat,
                structured_outputs=asked,
            )
        engine.wait_for_grammars()
        while not all(engine.tokens.get(name) for name in names):
            engine.step()
        steps = []
        for _ in range(NUM_STEPS):
            others, own = masker_seconds(), time.process_time()
            started = time.perf_counter()
            engine.step()
            wall = time.perf_counter() - started
            steps.append((wall, time.process_time() - own, masker_seconds() - others))
        running = len(engine.scheduler.running)
        assert running == self._num_chats, f"only {running} answers were that long"
        for name in names:
            engine.scheduler.abort("me", [name])
        return steps

    def close(self) -> None:
        self._engine.close()


def masker_seconds() -> float:
    """Processor time of the processes that we have started."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(each.user + each.system for each in times))


def replay_seconds(folder: Any, vocab_size: int) -> float:
    """Of 1,000 tokens of an answer."""
    tokenizer = llguidance.LLTokenizer((folder / "tokenizer.json").read_text(), n_vocab=vocab_size)
    grammar = compile_source(Source("json", json.dumps({"type": "string"})), tokenizer)
    tokens = tokenizer.tokenize_str('"' + "what was written of it " * 700)[:1000]
    times = []
    for _ in range(20):
        started = time.process_time()
        assert grammar.deep_copy().consume_tokens(tokens)
        times.append(time.process_time() - started)
    return statistics.median(times)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    model = checkpoint(arguments.model, cache_folder())
    settings = {"dtype": "bfloat16", "quantization": arguments.quantization}
    rounds = Rounds(model.folder, arguments.chats, arguments.temperature, settings)
    steps: dict[str, list[tuple[float, float, float]]] = {name: [] for name in FORMS}
    for form in FORMS.values():
        rounds.measure(form)  # what is made once
    for _ in range(arguments.rounds):
        for name, form in FORMS.items():
            steps[name] += rounds.measure(form)
    rounds.close()
    table = Table(title=f"bench.structured, {model.name} x {arguments.chats}, {machine()}")
    for heading in ("form", "step ms", "of none", "core CPU ms", "masker CPU ms", "CPU of none"):
        table.add_column(heading, justify="right")
    base_wall, base_cpu = _medians(steps["none"])
    for name, times in steps.items():
        wall, cpu = _medians(times)
        masker = statistics.mean(step[2] for step in times)
        row = (wall * 1e3, wall / base_wall, (cpu - masker) * 1e3, masker * 1e3, cpu / base_cpu)
        table.add_row(name, *(f"{value:.4g}" for value in row))
    Console().print(table)
    seconds = replay_seconds(model.folder, 151_936)
    Console().print(f"1,000 tokens read at once: {seconds * 1e3:.2f} ms")


def _medians(steps: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Of the clock, and of all processors: the masker's clock is too coarse for a single step."""
    masker = statistics.mean(step[2] for step in steps)
    wall = statistics.median(step[0] for step in steps)
    return wall, statistics.median(step[1] for step in steps) + masker


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.structured", description=__doc__)
    parser.add_argument("--model", default="m1", help="as for bench.peers: m1, m2 or a folder")
    parser.add_argument("--chats", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0, help="0: the best token")
    parser.add_argument("--quantization", choices=("int8", "int4"), default=None)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


if __name__ == "__main__":
    main()
