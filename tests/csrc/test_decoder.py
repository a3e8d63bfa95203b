"""decoder_step against its torch reference: formats, awkward sizes, levels, threads, opcheck."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import ops
from engine.fused.packing import PackedWeight, join_gate_up
from tests.built_kernels import needs_kernels

BLOCK_SIZE = 16
NUM_BLOCKS = 24
MAX_POSITIONS = 128
FORMATS = ["float32", "bfloat16", "int8", "float32, int8 cache", "int8, int8 cache"]
TOLERANCE = {  # of logits of about 1; what is rounded may be rounded to the other side
    "float32": 2e-5,
    "bfloat16": 5e-2,
    "int8": 0.12,
    "float32, int8 cache": 0.05,
    "int8, int8 cache": 0.12,
}

pytestmark = needs_kernels


class Model:
    """Random weights and a cache; `run` gives the logits of sequences, read in chunks together."""

    def __init__(
        self,
        format: str,
        *,
        layers: int = 2,
        hidden: int = 64,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 16,
        gated: int = 88,
        vocab: int = 50,
        windows: tuple[int, ...] = (0, 20),
        has_qk_norms: bool = True,
        has_bias: bool = True,
        is_tied: bool = False,
    ) -> None:
        torch.manual_seed(0)
        format, _, cache = format.partition(", ")
        num_qkv = (heads + 2 * kv_heads) * head_dim
        self.vocab, self.heads, self.windows = vocab, heads, list(windows)
        self.scale = head_dim**-0.5

        def pack(count: int, outputs: int, inputs: int, is_gate_up: bool = False) -> PackedWeight:
            rows = 2 * (outputs + -outputs % 16) if is_gate_up else outputs
            packed = PackedWeight.allocate(count, rows, inputs, format)
            for layer in range(count):
                weight = torch.randn(rows, inputs) / inputs**0.5
                if is_gate_up:
                    weight = join_gate_up(*torch.randn(2, outputs, inputs) / inputs**0.5)
                packed.fill(layer, weight)
            return packed

        self.qkv = pack(layers, num_qkv, hidden)
        self.out = pack(layers, hidden, heads * head_dim)
        self.gate_up = pack(layers, gated, hidden, is_gate_up=True)
        self.down = pack(layers, hidden, gated)
        self.head = pack(1, vocab, hidden)
        table = torch.randn(vocab, hidden)
        dtype = torch.float32 if format == "float32" else torch.bfloat16
        self.embeddings = None if is_tied else table.to(dtype)
        self.norms = torch.rand(2 * layers + 1, hidden) + 0.5
        self.qk_norms = torch.rand(layers, 2, head_dim) + 0.5 if has_qk_norms else None
        self.bias = torch.randn(layers, num_qkv) if has_bias else None
        angles = torch.arange(MAX_POSITIONS)[:, None] / 10.0 ** torch.arange(head_dim // 2)
        self.rotary = torch.stack([angles.cos(), angles.sin()], 1)
        self.sizes = (layers * NUM_BLOCKS, BLOCK_SIZE, kv_heads, head_dim)
        self.dtype = torch.int8 if cache else dtype  # of the cache
        self.layers = layers

    def arguments(
        self, caches: tuple[Tensor, Tensor, Tensor | None], parts: list[tuple[int, int, int]]
    ) -> tuple[Any, ...]:
        """`parts`: (number of the sequence, first token, end), whose last tokens give logits."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        bounds, lengths, rows = [0], [], []
        tables = torch.zeros(len(parts), 4, dtype=torch.int32)
        for row, (number, begin, end) in enumerate(parts):
            table = [(5 * number + 7 * i) % NUM_BLOCKS for i in range(4)]
            tables[row] = torch.tensor(table)
            text = [(number * 31 + i * 17 + i * i) % self.vocab for i in range(end)]
            ids += text[begin:]
            positions += range(begin, end)
            slots += [table[i // 16] * 16 + i % 16 for i in range(begin, end)]
            bounds.append(len(ids))
            lengths.append(end)
            rows.append(len(ids) - 1)
        logits = torch.full((len(parts), self.vocab), torch.nan)
        return (
            *(torch.tensor(values) for values in (ids, positions, slots)),
            tables,
            torch.tensor(bounds, dtype=torch.int32),
            torch.tensor(lengths, dtype=torch.int32),
            torch.tensor(rows),
            *caches,
            self.embeddings,
            self.norms,
            self.qk_norms,
            self.rotary,
            *(self.qkv.panels, self.qkv.scales, self.bias),
            *(self.out.panels, self.out.scales),
            *(self.gate_up.panels, self.gate_up.scales),
            *(self.down.panels, self.down.scales),
            *(self.head.panels, self.head.scales),
            logits,
            self.windows,
            self.heads,
            self.scale,
            1e-6,
        )

    def caches(self) -> tuple[Tensor, Tensor, Tensor | None]:
        keys = ops.allocate_cache(*self.sizes, self.dtype, is_key=True)
        values = ops.allocate_cache(*self.sizes, self.dtype, is_key=False)
        num_heads = self.sizes[2]
        scales = torch.zeros(self.layers, NUM_BLOCKS, 2, num_heads, BLOCK_SIZE)
        return (
            ops.stack_layers(keys, self.layers),
            ops.stack_layers(values, self.layers),
            scales if self.dtype == torch.int8 else None,
        )

    def run(self, backend: str, *steps: list[tuple[int, int, int]]) -> Tensor:
        """The logits of the last step."""
        caches = self.caches()
        for parts in steps:
            arguments = self.arguments(caches, parts)
            ops.choose(backend).decoder_step(*arguments)
        logits: Tensor = arguments[-5]
        return logits


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


STEPS = ([(0, 0, 33), (1, 0, 5)], [(2, 0, 1)], [(0, 33, 34), (1, 5, 40), (2, 1, 2)])


@pytest.mark.parametrize("format", FORMATS)
def test_prompts_chunks_and_decodes_equal_the_reference(format: str, num_threads: int) -> None:
    model = Model(format)
    ours, reference = model.run("cpu", *STEPS), model.run("torch", *STEPS)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[format])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "shape",
    [
        {"is_tied": True, "has_bias": False, "has_qk_norms": False},
        {"heads": 6, "kv_heads": 3, "head_dim": 6, "hidden": 36, "gated": 20},
        {"heads": 6, "kv_heads": 1, "head_dim": 18, "hidden": 260, "gated": 300, "vocab": 17},
    ],
    ids=["tied", "odd widths", "one kv head"],
)
def test_other_shapes_equal_the_reference(shape: dict[str, Any], format: str) -> None:
    model = Model(format, **shape)
    ours, reference = model.run("cpu", *STEPS), model.run("torch", *STEPS)
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE[format])


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_is_the_same_to_the_last_bit_in_any_batch_and_chunk(
    format: str, num_threads: int
) -> None:
    model = Model(format)
    whole = model.run("cpu", [(0, 0, 41)])
    others = [(number, 0, 12 + number) for number in range(1, 5)]
    assert torch.equal(model.run("cpu", [*others, (0, 0, 41)])[-1:], whole)
    for cuts in ([1, 2, 3], [40], [16, 32], [7, 14, 21, 28, 35]):
        bounds = [0, *cuts, 41]
        parts = [[(0, begin, end)] for begin, end in pairwise(bounds)]
        assert torch.equal(model.run("cpu", *parts), whole)


def test_threads_do_not_change_a_bit() -> None:
    before = torch.get_num_threads()
    model = Model("int8")
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(model.run("cpu", *STEPS))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


LEVELS_PROGRAM = """
import sys, torch
from engine import ops
from tests.csrc.test_decoder import FORMATS, STEPS, Model
ops.load_library()
torch.save({f: Model(f).run("cpu", *STEPS) for f in FORMATS}, sys.argv[1])
"""


def test_every_level_of_this_machine_gives_the_same(tmp_path: Any) -> None:
    results = {}
    for level in ("baseline", "x86_64_v3", "x86_64_v4", "avx512_vnni", "avx512_bf16"):
        file = tmp_path / f"{level}.pt"
        environment = {**os.environ, "PARLEY_CPU_LEVEL": level}
        command = [sys.executable, "-c", LEVELS_PROGRAM, str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if f"PARLEY_CPU_LEVEL is {level}, this machine has" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr
        results[level] = torch.load(file)
    baseline = results.pop("baseline")
    for by_format in results.values():
        for format, logits in by_format.items():
            torch.testing.assert_close(logits, baseline[format], rtol=0, atol=TOLERANCE[format])


@pytest.mark.parametrize("format", FORMATS)
def test_opcheck(format: str) -> None:
    model = Model(format)
    arguments = model.arguments(model.caches(), [(0, 0, 9)])
    torch.library.opcheck(
        torch.ops.parley.decoder_step.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (0, torch.tensor([50]), "input_ids has 50, the limit is 50"),
        (1, torch.tensor([MAX_POSITIONS]), "positions has 128"),
        (2, torch.tensor([NUM_BLOCKS * 16]), "slot_mapping has 384"),
        (0, torch.tensor([-1]), "input_ids has -1"),
        (1, torch.tensor([0, 1]), "positions is a row of 1 int64"),
        (3, torch.zeros(1, 4), "are contiguous int32"),
        (4, torch.tensor([0, 2], dtype=torch.int32), "ends at 2 of 1 rows"),
        (4, torch.tensor([-1, 1], dtype=torch.int32), "begins at -1, not 0"),
        (5, torch.tensor([1, 1], dtype=torch.int32), "differ in sequences"),
        (6, torch.tensor([1]), "logits_rows has 1"),
        (7, torch.zeros(2, NUM_BLOCKS, 16, 2, 16), "keys lie as"),
        (9, torch.zeros(2, NUM_BLOCKS, 2, 2, 16), "int8 caches have scales, others have none"),
        (10, torch.zeros(49, 64), "embeddings are contiguous"),
        (11, torch.zeros(4, 64), "norms has 256 numbers, not 320"),
        (14, torch.zeros(2, 8, 64, 16, 2), "panels are"),
        (14, torch.zeros(1, 8, 64, 16, 1), "panels are"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(place: int, value: Tensor, problem: str) -> None:
    model = Model("float32")
    arguments = list(model.arguments(model.caches(), [(0, 0, 1)]))
    arguments[place] = value
    with pytest.raises(RuntimeError, match=problem):
        torch.ops.parley.decoder_step(*arguments)


@pytest.mark.parametrize(
    "scales",
    [None, torch.zeros(2, NUM_BLOCKS, 2, 2, 8), torch.zeros(2, NUM_BLOCKS, 2, 2, 16).half()],
)
def test_scales_that_do_not_fit_an_int8_cache_are_refused(scales: Tensor | None) -> None:
    model = Model("float32, int8 cache")
    arguments = list(model.arguments(model.caches(), [(0, 0, 1)]))
    arguments[9] = scales
    with pytest.raises(RuntimeError, match="scales"):
        torch.ops.parley.decoder_step(*arguments)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_in_its_row(value: float, format: str) -> None:
    model = Model(format)
    expected = model.run("cpu", [(0, 0, 1), (1, 0, 1)])
    assert model.embeddings is not None
    model.embeddings[0, 3] = value  # sequence 0 begins with token 0, sequence 1 with another
    logits = model.run("cpu", [(0, 0, 1), (1, 0, 1)])
    assert not logits[0].isfinite().any()
    assert torch.equal(logits[1], expected[1])
