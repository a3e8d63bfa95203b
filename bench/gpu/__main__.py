"""`python -m bench.gpu`: the engine on a GPU, each figure beside what the GPU allows.

    decode     tokens/s of batches after contexts, beside the time that reading weights, keys and
               values takes at the memory's speed, and multiplying at that of matrix products
    prefill    tokens/s of a prompt, beside the speed of matrix products
    batch      32 chats from prompt to end, beside transformers' own continuous batching
    client     time to the first token of a prompt beside 32 running answers, and of a stop

Models have real shapes and random weights (`load_format="dummy"`). A cell whose keys and values
find no room says so. `--device cpu --shapes tiny --quick` shows that it works, without a GPU.
"""

import argparse
import asyncio
import functools
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench.gpu.cases import FULL, GPU_SHAPES, QUICK, Figure, Sizes
from bench.gpu.client import through_client
from bench.gpu.continuous_batching import transformers_batch
from bench.gpu.device import Device
from bench.gpu.stepped import Engine
from bench.harness.report import RESULTS, machine
from bench.peers.models import Checkpoint, Shape, make_without_weights


def measure(name: str, arguments: argparse.Namespace, on: Device, folder: Path) -> Iterator[Figure]:
    """Measure one shape. A failure is reported in its place, and the rest goes on."""
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
    if arguments.peer:
        yield _beside_transformers(ours, model, shape, sizes, on)
        _let_go()
    try:
        yield from asyncio.run(through_client(model, sizes, on))
    except Exception as error:  # such as a core that did not start
        yield Figure(name, "client", None, "ms", note=_one_line(error))


def _beside_transformers(
    ours: Figure, model: Checkpoint, shape: Shape, sizes: Sizes, on: Device
) -> Figure:
    case = f"{ours.case}, transformers"
    try:
        theirs = transformers_batch(model, shape, sizes, on)
    except Exception as error:  # of a library that we know nothing about
        return Figure(ours.shape, case, None, "tok/s", note=_one_line(error))
    ratio = f"{ours.value / theirs:.2f} x" if ours.value else ""
    return Figure(ours.shape, case, theirs, "tok/s", note=ratio)


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
    parser.add_argument(
        "--peer", action=argparse.BooleanOptionalAction, default=True, help="transformers as well"
    )
    parser.add_argument("--record", type=Path, help="where to keep the figures as JSON")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is seen; --device cpu shows that this works")
    return arguments


if __name__ == "__main__":
    main()
