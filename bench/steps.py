"""`python -m bench.steps`: the engine's step alone, without a process or a socket.

For each number of chats and length of context: how long a step takes, how long its one call of
csrc, how long the scheduler and the building of the batch before it ("plan") and the scheduler
after it ("update"), and how near the step comes to reading the weights, keys and values as fast as
the memory gives them. The loss is in the kernels, or in what is around them.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.harness.report import machine
from bench.peers.engines.parley import Parley
from bench.peers.machine.environments import cache_folder
from bench.peers.machine.speed import MachineSpeed
from bench.peers.models import Checkpoint, checkpoint
from bench.peers.record.figures import floor_rate
from engine.core.runner import model_runner
from engine.core.tensors.batch import build_batch
from tests.engine.helpers.stepped_engine import SteppedEngine

FORMATS = {
    "bf16": {"dtype": "bfloat16"},
    "bf16-kv8": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "int8-kv8": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}
CASES = ("1x128", "4x128", "16x128", "32x128", "1x2048")
NUM_STEPS = 24
MAX_CONTEXT = 4096
MAX_PROMPT_TOKENS = 2048  # in a step


class Clock:
    """Calls a function and adds up how long it took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.seconds = 0.0
        self._function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return self._function(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step.

    `plan`: of choosing sequences and laying out their batch; `update`: of what the scheduler does
    with their tokens.
    """

    whole: float
    kernels: float
    plan: float
    update: float


class Steps:
    """An engine whose steps are taken and timed here."""

    def __init__(self, model: Checkpoint, settings: dict[str, Any]) -> None:
        self._engine = SteppedEngine(
            model.folder,
            max_model_len=MAX_CONTEXT,
            kv_cache_memory_bytes=1200 << 20,
            max_num_batched_tokens=MAX_PROMPT_TOKENS,
            max_step_seconds=0.0,  # or the first chats would end before the last begin
            **settings,
        )
        fused: Any = self._engine.runner.loaded.fused
        if fused is None:
            raise SystemExit("these kernels do not run here: nothing to measure")
        self._kernels = fused.forward = Clock(fused.forward)
        scheduler: Any = self._engine.scheduler
        self._schedule = scheduler.schedule = Clock(scheduler.schedule)
        self._update = scheduler.update = Clock(scheduler.update)
        runner: Any = model_runner
        self._build = runner.build_batch = Clock(build_batch)
        self.value_bytes = fused.cache_bytes_per_token / model.kv_values

    def measure(self, num_chats: int, context: int) -> tuple[float, list[StepTimes]]:
        """Seconds of the prefill of all, and of each of `NUM_STEPS` steps in which all decode."""
        engine, name = self._engine, f"{num_chats}x{context}"
        generator = torch.Generator().manual_seed(context + num_chats)  # no prefix twice
        ids = torch.randint(300, 2000, (num_chats, context), generator=generator)
        names = [f"{name}-{number}" for number in range(num_chats)]
        num_tokens = NUM_STEPS + 1 + num_chats * context // MAX_PROMPT_TOKENS
        for number, chat in enumerate(names):
            engine.add(chat, ids[number].tolist(), max_tokens=num_tokens, temperature=0)
        started = time.perf_counter()
        while not all(engine.tokens.get(chat) for chat in names):
            engine.step()
        prefill, steps = time.perf_counter() - started, []
        clocks = (self._kernels, self._schedule, self._build, self._update)
        for _ in range(NUM_STEPS):
            for clock in clocks:
                clock.seconds = 0.0
            started = time.perf_counter()
            engine.step()
            whole = time.perf_counter() - started
            plan = self._schedule.seconds + self._build.seconds
            update = self._update.seconds
            steps.append(StepTimes(whole, self._kernels.seconds, plan, update))
        while engine.scheduler.sequences:
            engine.step()
        return prefill, steps


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    cache = cache_folder()
    model = checkpoint(arguments.model, cache)
    machine_speed = MachineSpeed(cache, arguments.threads)
    table = Table(title=f"bench.steps, {model.name}, {arguments.threads} threads, {machine()}")
    for heading in ("weights", "chats x context", "prefill tok/s", "step ms", "kernels ms"):
        table.add_column(heading, justify="right")
    for heading in ("plan ms", "update ms", "around ms", "tok/s", "memory GB/s", "of the floor"):
        table.add_column(heading, justify="right")
    for name in arguments.weights:
        steps, weight_bytes = Steps(model, FORMATS[name]), Parley.precisions[name]
        for case in track(arguments.cases, description=name, transient=True):
            num_chats, context = map(int, case.split("x"))
            speed = machine_speed.measure().bandwidth or float("nan")
            prefill, times = steps.measure(num_chats, context)
            step = statistics.median(one.whole for one in times)
            kernels = statistics.median(one.kernels for one in times)
            plan = statistics.median(one.plan for one in times)
            update = statistics.median(one.update for one in times)
            around = statistics.median(one.whole - one.kernels for one in times)
            floor = floor_rate(
                speed,
                model.num_weights,
                weight_bytes,
                model.kv_values,
                num_chats * context,
                steps.value_bytes,
            )
            row = [num_chats * context / prefill, step * 1e3, kernels * 1e3, plan * 1e3]
            row += [update * 1e3, around * 1e3, num_chats / step, speed]
            table.add_row(name, case, *(f"{value:.4g}" for value in row), f"{1 / step / floor:.0%}")
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("--model", default="m1", help="as for bench.peers: m1, m2 or a folder")
    parser.add_argument("--weights", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="CHATSxCONTEXT")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


if __name__ == "__main__":
    main()
