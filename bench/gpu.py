"""`python -m bench.gpu`: the engine on a GPU, each figure beside what the GPU allows.

    decode     tokens/s of batches behind contexts, beside the time that reading weights, keys and
               values takes at the memory's speed, and multiplying at that of matrix products
    prefill    tokens/s of a prompt, beside the speed of matrix products
    batch      32 chats from prompt to end, beside transformers' own continuous batching
    client     time to the first token of a prompt beside 32 running answers, and of a stop

Models have real shapes and random weights (`load_format="dummy"`). A cell whose keys and values
find no room says so. `--device cpu --shapes tiny --quick` shows that it works, without a GPU.
"""

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig

from bench.peers.models import SHAPES, Checkpoint, Shape, config_of, make_without_weights
from bench.report import RESULTS, machine
from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from engine.core.scheduling.sequence import SampledToken, ScheduledSequence, Tokens
from tests.engine.helpers.stepped_engine import SteppedEngine

GPU_SHAPES = {
    "tiny": SHAPES["tiny"],
    "0.6B": SHAPES["m1"],
    "8B": Shape("qwen3", 4096, 12288, 36, 32, 8, 128, 151_936, 40_960, 1e6, 1e-6, 0, False),
    "32B": Shape("qwen3", 5120, 25600, 64, 64, 8, 128, 151_936, 40_960, 1e6, 1e-6, 0, False),
}
VALUE_BYTES = 2  # of weights, keys and values: bfloat16
NUM_STOPS = 10
TOKEN = 300  # of made prompts, which say nothing


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each is measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    prompt: int
    chats: int
    chat: tuple[int, int]  # tokens in and out
    late_prompt: int


FULL = Sizes((1, 8, 32, 128, 256), (512, 4096, 32_768), 64, 8192, 32, (512, 128), 2048)
QUICK = Sizes((1, 4), (64, 3000), 4, 128, 4, (32, 8), 100)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `floor` is the share of what the device allows that it reaches."""

    shape: str
    case: str
    value: float | None  # None: it did not fit, or could not be measured
    unit: str
    floor: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """What the device does at its best, measured here."""

    device: torch.device
    bandwidth: float  # bytes/s read and written by a copy
    flops: float  # of bfloat16 matrix products, 1/s

    @classmethod
    def measure(cls, name: str) -> "Device":
        device = torch.device(name)
        is_gpu = device.type == "cuda"
        source = torch.empty(1 << (31 if is_gpu else 26), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copying = time_of(lambda: target.copy_(source), device)
        width = 8192 if is_gpu else 512
        left, right = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
        out = torch.empty_like(left)
        multiplying = time_of(lambda: torch.mm(left, right, out=out), device)
        return cls(device, 2 * len(source) / copying, 2 * width**3 / multiplying)

    def decode_seconds(self, model: Checkpoint, batch: int, context: int) -> float:
        """The least that a step can take."""
        values = model.num_weights + batch * context * model.kv_values
        operations = 2 * model.num_weights * batch + batch * context * model.flops_per_key
        return max(VALUE_BYTES * values / self.bandwidth, operations / self.flops)

    def prefill_seconds(self, model: Checkpoint, num_tokens: int) -> float:
        pairs = num_tokens * num_tokens / 2
        operations = num_tokens * model.flops_per_token + pairs * model.flops_per_key
        return operations / self.flops

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Engine:
    """The engine of one shape, stepped here as its core steps it."""

    def __init__(self, model: Checkpoint, sizes: Sizes, on: Device) -> None:
        self._on = on
        self._sizes = sizes
        self._model = model
        self._engine = SteppedEngine(
            model.folder,
            runs_ahead=on.device.type == "cuda",
            load_format="dummy",
            dtype="bfloat16",
            device=on.device.type,
            max_num_seqs=max(sizes.batches),
            max_step_seconds=0.0,
            enable_prefix_caching=False,
            batch_invariant=False,
        )
        self.attention = self._engine.runner.loaded.attn_backend

    def decode(self, batch: int, context: int) -> Figure:
        case, steps = f"decode {batch} x {context}", self._sizes.steps
        scheduler = self._engine.scheduler
        # While the last prompts are read, the first answers go on.
        longest = steps + 8 + batch + batch * context // scheduler.config.max_num_batched_tokens
        per_chat = scheduler.blocks.num_blocks_for(context + longest) + 1
        if batch * per_chat > scheduler.blocks.num_blocks:
            return Figure(self._model.name, case, None, "tok/s", note="does not fit")
        names = [f"{case}/{number}" for number in range(batch)]
        with self._reading_nothing():
            for name in names:
                self._engine.add(name, [TOKEN] * context, max_tokens=longest)
            while not all(self._engine.tokens.get(name) for name in names):
                self._engine.step()
        self._step(3)
        before = self._num_tokens(names)
        seconds = self._timed(lambda: self._step(steps)) / steps
        assert self._num_tokens(names) - before == batch * steps, "not all of them ran"
        seen = context + (before + batch * steps // 2) // batch  # on average
        scheduler.abort("me", names)
        self._engine.run()
        floor = self._on.decode_seconds(self._model, batch, seen)
        return Figure(self._model.name, case, batch / seconds, "tok/s", floor / seconds)

    def _num_tokens(self, names: list[str]) -> int:
        return sum(len(self._engine.tokens[name]) for name in names)

    def _step(self, count: int) -> None:
        for _ in range(count):
            self._engine.step()

    def prefill(self) -> Figure:
        count = self._sizes.prompt
        floor = self._on.prefill_seconds(self._model, count)
        seconds = [self._whole(1, count, 1) for _ in range(4)][1:]  # the first makes room
        rate, share = count / statistics.median(seconds), floor / statistics.median(seconds)
        return Figure(self._model.name, f"prefill {count}", rate, "tok/s", share)

    def batch(self) -> Figure:
        """Tokens/s of chats from the first to the last, their prompts included."""
        chats, (length, answer) = self._sizes.chats, self._sizes.chat
        self._whole(chats, length, answer)  # makes room
        rate = chats * answer / self._whole(chats, length, answer)
        note = f"attention: {self.attention}"
        return Figure(self._model.name, f"{chats} x {length} + {answer}", rate, "tok/s", note=note)

    def _whole(self, chats: int, length: int, answer: int) -> float:
        for number in range(chats):
            name = f"{time.monotonic()}/{number}"
            self._engine.add(name, [TOKEN + number] * length, max_tokens=answer, temperature=0)
        return self._timed(self._engine.run)

    def _timed(self, run: Callable[[], object]) -> float:
        self._on.wait()
        started = time.perf_counter()
        run()
        self._on.wait()
        return time.perf_counter() - started

    @contextlib.contextmanager
    def _reading_nothing(self) -> Iterator[None]:
        """Prompts cost nothing meanwhile: their keys and values stay what they are, zeros."""

        def skip(scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
            tokens: Tokens = [SampledToken(TOKEN) if x.is_sampled else None for x in scheduled]
            return lambda: tokens

        runner: Any = self._engine.runner
        launch, runner.launch = runner.launch, skip
        yield
        runner.launch = launch


def transformers_batch(model: Checkpoint, shape: Shape, sizes: Sizes, on: Device) -> float:
    """Tokens/s of the same chats by `generate_batch`."""
    with on.device:
        peer: Any = AutoModelForCausalLM.from_config(
            config_of(shape), dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    length, answer = sizes.chat
    settings = GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1)
    seconds = []
    for attempt in range(2):  # the first one compiles and makes room; no prompt comes twice
        first = TOKEN + attempt * sizes.chats
        chats = [[first + number] * length for number in range(sizes.chats)]
        on.wait()
        started = time.perf_counter()
        answers = peer.generate_batch(
            inputs=chats, generation_config=settings, persistent_manager=True
        )
        on.wait()
        seconds.append(time.perf_counter() - started)
    peer.destroy_cached_continuous_batching_manager()
    num_tokens = sum(len(each.generated_tokens) for each in answers.values())
    assert num_tokens == sizes.chats * answer, f"{num_tokens} tokens came of {model.name}"
    return num_tokens / seconds[-1]


async def through_client(model: Checkpoint, sizes: Sizes, on: Device) -> list[Figure]:
    """A core of its own, with answers that run all the time."""
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            str(model.folder),
            load_format="dummy",
            dtype="bfloat16",
            device=on.device.type,
            max_num_seqs=sizes.chats + 1,
            batch_invariant=False,
        )
    )
    endless = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=None, output_kind=RequestOutputKind.DELTA
    )
    try:
        streams = []
        for number in range(sizes.chats):
            prompt = [TOKEN + number] * sizes.chat[0]
            streams.append(await engine.add_request(f"chat-{number}", prompt, endless))
        tasks = [asyncio.create_task(_drain(stream)) for stream in streams]
        first, stop = [], []
        for number in range(NUM_STOPS):
            name, prompt = f"late-{number}", [TOKEN + 100 + number] * sizes.late_prompt
            started = time.perf_counter()
            stream = await engine.add_request(name, prompt, endless)
            async for output in stream:
                if output.outputs and output.outputs[0].token_ids:
                    break
            first.append(time.perf_counter() - started)
            started = time.perf_counter()
            await engine.abort(name)
            await _drain(stream)
            stop.append(time.perf_counter() - started)
        await engine.abort([f"chat-{number}" for number in range(sizes.chats)])
        await asyncio.gather(*tasks)
    finally:
        engine.shutdown()
    late = f"first token of {sizes.late_prompt} beside {sizes.chats}"
    return [
        Figure(model.name, late, statistics.median(first) * 1e3, "ms"),
        Figure(model.name, f"stop beside {sizes.chats}", statistics.median(stop) * 1e3, "ms"),
    ]


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def time_of(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """The median of some runs, in seconds."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    seconds = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def measure(name: str, arguments: argparse.Namespace, on: Device, folder: Path) -> Iterator[Figure]:
    """Everything of one shape. What fails is told in its place, and the rest goes on."""
    shape, sizes = GPU_SHAPES[name], QUICK if arguments.quick else FULL
    model = make_without_weights(shape, folder / name)
    try:
        engine: Engine | None = Engine(model, sizes, on)
    except Exception as error:  # a shape that is too large for the device, for one
        yield Figure(name, "all", None, "", note=_one_line(error))
        return

    def attempt(case: str, run: Callable[[Engine], Figure]) -> Figure:
        """With a new engine where the last case has left it broken."""
        nonlocal engine
        try:
            engine = engine or Engine(model, sizes, on)
            return run(engine)
        except Exception as error:
            engine = None
            reason = _one_line(error)
        _let_go()
        return Figure(name, case, None, "", note=reason)

    for context in sizes.contexts:
        for batch in sizes.batches:
            run = functools.partial(Engine.decode, batch=batch, context=context)
            yield attempt(f"decode {batch} x {context}", run)
    yield attempt("prefill", Engine.prefill)
    ours = attempt("batch", Engine.batch)
    yield ours
    engine = None
    _let_go()
    try:
        theirs = transformers_batch(model, shape, sizes, on)
        ratio = f"{ours.value / theirs:.2f} x" if ours.value else ""
        yield Figure(name, f"{ours.case}, transformers", theirs, "tok/s", note=ratio)
    except Exception as error:  # of a library that we know nothing about
        yield Figure(name, f"{ours.case}, transformers", None, "tok/s", note=_one_line(error))
    _let_go()
    try:
        yield from asyncio.run(through_client(model, sizes, on))
    except Exception as error:  # such as a core that did not start
        yield Figure(name, "client", None, "ms", note=_one_line(error))


def _let_go() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def main() -> None:
    arguments = parse_arguments()
    console = Console()
    on = Device.measure(arguments.device)
    is_gpu = on.device.type == "cuda"
    where = torch.cuda.get_device_name(on.device) if is_gpu else machine()
    speeds = f"{on.bandwidth / 1e9:.0f} GB/s, {on.flops / 1e12:.3g} TFLOP/s"
    title = f"bench.gpu, {where}, torch {torch.__version__}: {speeds}"
    table = Table(title=title)
    for heading in ("shape", "case", "figure", "of what the device allows", ""):
        table.add_column(heading, justify="left" if heading in ("shape", "case") else "right")
    path = arguments.record or RESULTS / time.strftime("gpu-%Y%m%d-%H%M%S.json")
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.shapes:
            for figure in measure(name, arguments, on, Path(folder)):
                figures.append(figure)
                _save(path, title, figures)  # after each: a run may be cut off
                value = "" if figure.value is None else f"{figure.value:.4g} {figure.unit}"
                floor = "" if figure.floor is None else f"{figure.floor:.0%}"
                table.add_row(figure.shape, figure.case, value, floor, figure.note)
                console.print(f"{figure.shape}  {figure.case}  {value}  {floor}  {figure.note}")
    console.print(table)
    console.print(f"saved {path}")


def _save(path: Path, where: str, figures: list[Figure]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"where": where, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(record, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=GPU_SHAPES, default=["0.6B", "8B", "32B"])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument("--record", type=Path, help="where to keep the figures as JSON")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is seen; --device cpu shows that this works")
    return arguments


if __name__ == "__main__":
    main()
