"""`python -m bench.kernels`: the products and the attention of csrc alone, beside the machine.

It takes all layers of a shape, one after the other, so that nothing stays in the caches from one
pass to the next. A product with few rows reads its weights, and should take as long as the memory
needs for that; one with many multiplies, and should be near what the processors multiply.
PARLEY_CPU_LEVEL names an instruction set other than the best.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.harness.report import machine
from bench.peers.machine.environments import cache_folder
from bench.peers.machine.speed import MachineSpeed
from bench.peers.models import SHAPES, Shape
from engine.core.ops import library as ops
from engine.core.ops.packing import DTYPES, PackedWeight
from engine.core.tensors.kv_cache import allocate_cache

BLOCK_SIZE = 16  # tokens, as csrc has them
ROWS = (1, 4, 8, 16, 32, 128)
ATTENTION = ("1x2048x1", "8x256x1", "1x512x512", "1x2048x128")
SECONDS = 2.0  # of each case, and three passes at least


class Products:
    """Every matrix product of a model's layers, in one format: rows → what they give."""

    def __init__(self, shape: Shape, format: str) -> None:
        heads = (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
        attended = shape.num_attention_heads * shape.head_dim
        hidden, wide = shape.hidden_size, shape.intermediate_size
        sizes = ((heads, hidden), (hidden, attended), (2 * wide, hidden), (hidden, wide))
        layers = shape.num_hidden_layers
        self._weights = [(*size, PackedWeight.allocate(layers, *size, format)) for size in sizes]
        self.num_weights = layers * sum(outputs * inputs for outputs, inputs in sizes)
        self.num_bytes = 0
        for _, _, weight in self._weights:
            for tensor in (weight.panels, weight.scales):
                if tensor is not None:
                    self.num_bytes += tensor.nbytes
                    tensor.fill_(1)
        self._num_layers = layers

    def passes(self, num_rows: int) -> Callable[[], None]:
        """A function that multiplies so many rows with all of them."""
        compute = ops.choose("cpu").linear
        inputs = {size: torch.randn(num_rows, size) for _, size, _ in self._weights}
        outputs = {size: torch.empty(num_rows, size) for size, _, _ in self._weights}

        def run() -> None:
            for layer in range(self._num_layers):
                for num_outputs, num_inputs, weight in self._weights:
                    scales = None if weight.scales is None else weight.scales[layer]
                    rows, out = inputs[num_inputs], outputs[num_outputs]
                    compute(rows, weight.panels[layer], scales, None, out)

        return run


class Attention:
    """Chats of one length, with a chunk of so many tokens each, in every layer."""

    def __init__(self, shape: Shape, num_chats: int, context: int, chunk: int) -> None:
        dtype = torch.bfloat16
        heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        dim = shape.head_dim
        blocks = -(-context // BLOCK_SIZE)
        num_blocks = shape.num_hidden_layers * num_chats * blocks
        sizes = (num_blocks, BLOCK_SIZE, kv_heads, dim, dtype)
        self._keys, self._values = (
            allocate_cache(*sizes, is_key=is_key) for is_key in (True, False)
        )
        for cache in (self._keys, self._values):
            cache.copy_(torch.randn(1, BLOCK_SIZE, kv_heads, dim))
        self._query = torch.randn(num_chats * chunk, heads, dim).to(dtype)
        self._out = torch.empty_like(self._query)
        places = torch.arange(num_blocks, dtype=torch.int32)
        self._tables = list(places.view(shape.num_hidden_layers, num_chats, blocks))
        self._starts = torch.arange(0, num_chats * chunk + 1, chunk, dtype=torch.int32)
        self._lengths = torch.full((num_chats,), context, dtype=torch.int32)
        self._scale = dim**-0.5
        self.num_bytes = 2 * num_blocks * BLOCK_SIZE * kv_heads * dim * dtype.itemsize
        pairs = sum(range(context - chunk + 1, context + 1))  # of a query and a key that it sees
        self.flops = 4 * shape.num_hidden_layers * num_chats * heads * dim * pairs

    def run(self) -> None:
        attend = ops.choose("cpu").paged_attention
        for table in self._tables:
            attend(
                self._query,
                self._keys,
                self._values,
                table,
                self._starts,
                self._lengths,
                self._out,
                self._scale,
                0,
                0.0,
                None,
            )


def time_passes(run: Callable[[], None]) -> tuple[float, float]:
    """Median and least of the seconds of a pass."""
    run()
    passes: list[float] = []
    while sum(passes) < SECONDS or len(passes) < 3:
        started = time.perf_counter()
        run()
        passes.append(time.perf_counter() - started)
    return statistics.median(passes), min(passes)


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None], int, int]]:
    """What each is called, what runs it, and the bytes it reads and the operations it does."""
    shape = SHAPES[arguments.model]
    for format in arguments.formats:
        products = Products(shape, format)
        for count in arguments.rows:
            name = f"{format}, {count} rows" if count > 1 else f"{format}, 1 row"
            flops = 2 * products.num_weights * count
            yield name, products.passes(count), products.num_bytes, flops
    for case in arguments.attention:
        num_chats, context, chunk = map(int, case.split("x"))
        attention = Attention(shape, num_chats, context, chunk)
        name = f"attention, {num_chats} x {chunk} of {context}"
        yield name, attention.run, attention.num_bytes, attention.flops


def main() -> None:
    arguments = parse_arguments()
    ops.load_library()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    machine_speed = MachineSpeed(cache_folder(), arguments.threads)
    level = torch.ops.parley.cpu_level()
    where = f"{arguments.threads} threads, {level}, {machine()}"
    table = Table(title=f"bench.kernels, all layers of {arguments.model}, {where}")
    table.add_column("")
    for heading in ("median ms", "least ms", "GB/s", "of memory", "GFLOP/s", "of float32"):
        table.add_column(heading, justify="right")
    total = len(arguments.formats) * len(arguments.rows) + len(arguments.attention)
    for name, run, num_bytes, flops in track(cases(arguments), total=total, transient=True):
        speed = machine_speed.measure()
        median, least = time_passes(run)
        rates = (num_bytes / median / 1e9, flops / median / 1e9)
        limits = (speed.bandwidth, None if name.startswith("int8") else speed.gigaflops)
        cells = [f"{median * 1e3:.4g}", f"{least * 1e3:.4g}"]
        for rate, limit in zip(rates, limits, strict=True):
            cells += [f"{rate:.4g}", "" if limit is None else f"{rate / limit:.0%}"]
        table.add_row(name, *cells)
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--model", default="m1", choices=SHAPES)
    parser.add_argument("--formats", nargs="*", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument(
        "--attention", nargs="*", default=list(ATTENTION), metavar="CHATSxCONTEXTxCHUNK"
    )
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
