"""decoder_step against its torch reference: formats, awkward sizes, levels, threads, opcheck."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.ops import library as ops
from engine.core.ops.decoder_step import (
    DecoderCache,
    DecoderSettings,
    DecoderWeights,
    HiddenRows,
    LoadedDecoder,
    StepInput,
    flatten,
)
from engine.core.ops.numbers import ZEROS, NumberKind, Numbers
from engine.core.ops.packing import BITS, PackedWeight, join_gate_up
from engine.core.ops.stacks import PackedStack, Piece
from engine.core.tensors.kv_cache import allocate_cache, stack_layers
from tests.helpers.built_kernels import needs_kernels

BLOCK_SIZE = 16
TABLE_BLOCKS = 80  # of a sequence: two stretches of keys, and several spans
NUM_BLOCKS = 6 * TABLE_BLOCKS
MAX_POSITIONS = TABLE_BLOCKS * BLOCK_SIZE
FORMATS = ["float32", "bfloat16", "int8", "int4", "float32, int8 cache", "int8, int8 cache"]
TOLERANCE = {  # of logits of about 1, from the reference: of half of the rows, and of all
    "float32": (1e-5, 2e-5),
    "bfloat16": (1e-4, 1e-2),
    "int8": (1e-4, 0.1),
    "int4": (1e-4, 0.1),
    "float32, int8 cache": (1e-4, 2e-2),
    "int8, int8 cache": (1e-4, 0.1),
}
# Where products of bfloat16 round their rows, and attention over bfloat16 its queries and weights,
# as the reference does not. Rows of int8 then fall on other steps here and there, which is more.
ROUNDED_TOLERANCE = {"bfloat16": (2e-2, 6e-2), "int8": (7e-2, 0.15), "int4": (7e-2, 0.15)}

pytestmark = needs_kernels


def numbers_of(weight: Tensor, bits: int, part_inputs: int) -> Numbers:
    """Those next to these floats."""
    parts = weight.view(len(weight), -1, part_inputs)
    scales = (parts.abs().amax(-1) / (ZEROS[bits] - 1)).half()
    codes = (parts / scales.float()[..., None]).round() + ZEROS[bits]
    codes = codes.clamp(0, 2 * ZEROS[bits] - 1)
    return Numbers(codes.flatten(1).to(torch.uint8), scales, None, bits, part_inputs)


def mixed_stack(layers: list[Numbers], cut: int | None) -> PackedStack:
    """The same numbers: every other layer wider, and the others in two pieces, if they are cut."""
    kinds: list[PackedWeight] = []
    pieces: list[tuple[Piece, ...]] = []

    def pack(numbers: Numbers, kind: NumberKind) -> Piece:
        num_outputs, num_inputs = numbers.codes.shape
        packed = PackedWeight.of_numbers(2, num_outputs, num_inputs, kind)
        packed.fill_numbers(1, numbers)
        kinds.append(packed)
        return Piece(len(kinds) - 1, 1, len(numbers.codes))

    def rows(numbers: Numbers, part: slice) -> Numbers:
        return numbers._replace(codes=numbers.codes[part], scales=numbers.scales[part])

    wide = NumberKind(8, 16, has_least=True)
    for layer, numbers in enumerate(layers):
        if layer % 2:
            pieces.append((pack(numbers, wide),))
        elif cut is None:
            pieces.append((pack(numbers, numbers.kind),))
        else:
            first, second = rows(numbers, slice(cut)), rows(numbers, slice(cut, None))
            pieces.append((pack(first, first.kind), pack(second, wide)))
    return PackedStack(tuple(kinds), tuple(pieces))


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
        part_inputs: int | None = None,
        has_least: bool = False,
        is_mixed: bool = False,
    ) -> None:
        """With `part_inputs`, weights are `numbers_of` as many bits as `format` has.

        If `is_mixed`, layers differ in how these are packed, and values from queries and keys.
        """
        # With the seed of the others an early key of int4 falls on another step, and all see it.
        torch.manual_seed(2 if format == "int4" else 0)
        format, _, cache = format.partition(", ")
        num_qkv = (heads + 2 * kv_heads) * head_dim
        self.vocab = vocab
        self.settings = DecoderSettings(windows, heads, head_dim**-0.5, 1e-6)

        def pack(count: int, outputs: int, inputs: int, is_gate_up: bool = False) -> PackedStack:
            rows = 2 * (outputs + -outputs % 16) if is_gate_up else outputs
            packed = PackedWeight.allocate(
                count, rows, inputs, format, part_inputs or 32, has_least=has_least
            )
            given: list[Numbers] = []
            for layer in range(count):
                weight = torch.randn(rows, inputs) / inputs**0.5
                if is_gate_up:
                    weight = join_gate_up(*torch.randn(2, outputs, inputs) / inputs**0.5)
                if part_inputs is None:
                    packed.fill(layer, weight)
                else:
                    given.append(numbers_of(weight, BITS[format], part_inputs))
                    packed.fill_numbers(layer, given[-1])
            if not is_mixed or count == 1:
                return PackedStack.alike(packed, rows)
            return mixed_stack(given, None if is_gate_up else rows - kv_heads * head_dim)

        packed: dict[str, Any] = {
            "qkv": pack(layers, num_qkv, hidden),
            "attention_out": pack(layers, hidden, heads * head_dim),
            "gate_up": pack(layers, gated, hidden, is_gate_up=True),
            "down": pack(layers, hidden, gated),
            "head": pack(1, vocab, hidden).kinds[0],
        }
        table = torch.randn(vocab, hidden)
        dtype = torch.float32 if format == "float32" else torch.bfloat16
        self.weights = DecoderWeights(
            embeddings=None if is_tied else table.to(dtype),
            norms=torch.rand(2 * layers + 1, hidden) + 0.5,
            qk_norms=torch.rand(layers, 2, head_dim) + 0.5 if has_qk_norms else None,
            qkv_bias=torch.randn(layers, num_qkv) if has_bias else None,
            **packed,
        )
        angles = torch.arange(MAX_POSITIONS)[:, None] / torch.logspace(0, 3, head_dim // 2)
        self.rotary = torch.stack([angles.cos(), angles.sin()], 1)
        self.sizes = (layers * NUM_BLOCKS, BLOCK_SIZE, kv_heads, head_dim)
        self.dtype = torch.int8 if cache else dtype  # of the cache
        self.layers = layers

    def inputs(self, parts: list[tuple[int, int, int]], *, all_logits: bool = False) -> StepInput:
        """`parts`: (number of the sequence, first token, end), whose last tokens give logits."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        bounds, lengths = [0], []
        rows: list[int] = []
        tables = torch.zeros(len(parts), TABLE_BLOCKS, dtype=torch.int32)
        for row, (number, begin, end) in enumerate(parts):
            table = [7 * (TABLE_BLOCKS * number + i) % NUM_BLOCKS for i in range(TABLE_BLOCKS)]
            tables[row] = torch.tensor(table)
            text = [(number * 31 + i * 17 + i * i) % self.vocab for i in range(end)]
            ids += text[begin:]
            positions += range(begin, end)
            slots += [table[i // 16] * 16 + i % 16 for i in range(begin, end)]
            bounds.append(len(ids))
            lengths.append(end)
            rows += range(bounds[-2] if all_logits else bounds[-1] - 1, bounds[-1])
        return StepInput(
            torch.tensor(ids),
            torch.tensor(positions),
            torch.tensor(slots),
            tables,
            torch.tensor(bounds, dtype=torch.int32),
            torch.tensor(lengths, dtype=torch.int32),
            torch.tensor(rows),
        )

    def logits(self, inputs: StepInput) -> Tensor:
        """Room for them."""
        return torch.full((len(inputs.logits_rows), self.vocab), torch.nan)

    def arguments(self, parts: list[tuple[int, int, int]]) -> tuple[Any, ...]:
        """Those of the flat op, with an empty cache."""
        inputs = self.inputs(parts)
        return flatten(inputs, self.load(), self.logits(inputs))

    def load(self) -> LoadedDecoder:
        """With an empty cache."""
        keys = allocate_cache(*self.sizes, self.dtype, is_key=True)
        values = allocate_cache(*self.sizes, self.dtype, is_key=False)
        scales = None
        if self.dtype == torch.int8:
            scales = torch.zeros(self.layers, NUM_BLOCKS, 2, self.sizes[2], BLOCK_SIZE)
        keys, values = stack_layers(keys, self.layers), stack_layers(values, self.layers)
        cache = DecoderCache(keys, values, scales)
        return LoadedDecoder(self.weights, self.rotary, cache, self.settings)

    def run(self, backend: str, *steps: list[tuple[int, int, int]]) -> Tensor:
        """The logits of the last step: of the last token of each sequence."""
        return self._run(backend, steps, all_logits=False)[-1]

    def run_all(self, backend: str, *steps: list[tuple[int, int, int]]) -> Tensor:
        """The logits of all tokens, in the order of the steps."""
        return torch.cat(self._run(backend, steps, all_logits=True))

    def _run(self, backend: str, steps: Any, *, all_logits: bool) -> list[Tensor]:
        loaded = self.load()
        results = []
        for parts in steps:
            inputs = self.inputs(parts, all_logits=all_logits)
            results.append(self.logits(inputs))
            ops.choose(backend).decoder_step(inputs, loaded, results[-1])
        return results


def check_equals_reference(
    ours: Tensor, reference: Tensor, format: str, level: str | None = None
) -> None:
    """Sums in another order are all that most rows differ by.

    A number between two steps may be rounded to the other one by that: it shows in its whole row,
    and in rows after it.
    """
    differences = (ours - reference).abs().amax(-1)
    rounds = (level or torch.ops.parley.cpu_level()) == "avx512_bf16"
    tolerance = TOLERANCE | ROUNDED_TOLERANCE if rounds else TOLERANCE
    half, largest = tolerance[format]
    assert differences.median() < half
    assert differences.max() < largest


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


STEPS = ([(0, 0, 33), (1, 0, 5)], [(2, 0, 1)], [(0, 33, 34), (1, 5, 40), (2, 1, 2)])
WIDE: dict[str, Any] = {  # as real models: several vectors of a head, several groups of inputs
    "hidden": 384,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 128,
    "gated": 400,
    "vocab": 211,
}
LONG_STEPS = ([(0, 0, 250), (1, 0, 5)], [(0, 250, 320), (1, 5, 8)])
NUM_LATE = 73  # tokens of the last step: 70 about the border of two spans of keys, and 3


@pytest.mark.parametrize("format", FORMATS)
def test_prompts_chunks_and_decodes_equal_the_reference(format: str, num_threads: int) -> None:
    model = Model(format)
    ours, reference = model.run_all("cpu", *STEPS), model.run_all("torch", *STEPS)
    check_equals_reference(ours, reference, format)


@pytest.mark.parametrize("window", [0, 20, 270])
@pytest.mark.parametrize("format", FORMATS)
def test_long_texts_in_wide_models_equal_the_reference(format: str, window: int) -> None:
    """In one layer: in more, one number that is rounded to the other side soon shows everywhere."""
    model = Model(format, **WIDE, layers=1, windows=(window,))
    ours, reference = model.run_all("cpu", *LONG_STEPS), model.run_all("torch", *LONG_STEPS)
    check_equals_reference(ours[:-NUM_LATE], reference[:-NUM_LATE], format)
    check_equals_reference(ours[-NUM_LATE:], reference[-NUM_LATE:], format)


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
    if format == "int4":  # packs inputs by eights
        shape |= {
            name: -(-shape[name] // 8) * 8 for name in ("hidden", "head_dim") if name in shape
        }
    model = Model(format, **shape)
    ours, reference = model.run_all("cpu", *STEPS), model.run_all("torch", *STEPS)
    check_equals_reference(ours, reference, format)


@pytest.mark.parametrize("has_least", [False, True])
@pytest.mark.parametrize("part_inputs", [16, 32])
@pytest.mark.parametrize("format", sorted(BITS))
def test_weights_of_numbers_equal_the_reference(
    format: str, part_inputs: int, has_least: bool
) -> None:
    """The output layer among them, whose rows are embeddings, too."""
    model = Model(format, gated=96, is_tied=True, part_inputs=part_inputs, has_least=has_least)
    ours, reference = model.run_all("cpu", *STEPS), model.run_all("torch", *STEPS)
    check_equals_reference(ours, reference, "int4")


@pytest.mark.parametrize("format", sorted(BITS))
def test_layers_and_pieces_of_other_widths_equal_the_reference(
    format: str, num_threads: int
) -> None:
    shape: dict[str, Any] = {"gated": 96, "head_dim": 12, "layers": 3, "windows": (0, 20, 0)}
    model = Model(format, **shape, part_inputs=16, is_mixed=True)
    ours, reference = model.run_all("cpu", *STEPS), model.run_all("torch", *STEPS)
    check_equals_reference(ours, reference, "int4")
    alike = Model(format, **shape, part_inputs=16).run_all("torch", *STEPS)
    torch.testing.assert_close(reference, alike, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows[:-1], "a layer has 0 outputs, not 64"),
        (lambda rows: rows.flip(0), "in the order of stacks and layers"),
        (lambda rows: rows + torch.tensor([0, 0, 9, 0, 0]), "a piece has no weight"),
        (lambda rows: rows + torch.tensor([0, 0, 0, 2, 0]), "a piece is none of its weight's"),
        (lambda rows: rows + torch.tensor([0, 0, 0, 0, 16]), "a piece is none of its weight's"),
        (lambda rows: rows - torch.tensor([0, 0, 0, 0, 1]), "a layer has 127 outputs, not 128"),
        (lambda rows: rows.int(), "contiguous int64"),
        (lambda rows: rows[:, :4], "contiguous int64"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(change: Any, problem: str) -> None:
    arguments = list(Model("float32").arguments([(0, 0, 1)]))
    (place,) = (i for i, one in enumerate(arguments) if _is_table(one))
    arguments[place] = change(arguments[place])
    with pytest.raises(RuntimeError, match=problem):
        torch.ops.parley.decoder_step(*arguments)


def _is_table(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.dim() == 2 and argument.shape[1] == 5


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("shape", "length", "chunkings"),
    [
        ({}, 41, ([1, 2, 3], [40], [16, 32], [7, 14, 21, 28, 35])),
        (
            WIDE | {"layers": 3, "windows": (0, 20, 270)},
            310,
            ([1, 2, 3], [255, 256, 257], [300, 309], [64, 128, 192, 256], [*range(47, 310, 47)]),
        ),
    ],
    ids=["small", "wide"],
)
def test_a_row_is_the_same_to_the_last_bit_in_any_batch_and_chunk(
    shape: dict[str, Any],
    length: int,
    chunkings: tuple[list[int], ...],
    format: str,
    num_threads: int,
) -> None:
    model = Model(format, **shape)
    whole = model.run_all("cpu", [(0, 0, length)])
    others = [(number, 0, 12 + number) for number in range(1, 5)]
    assert torch.equal(model.run_all("cpu", [*others, (0, 0, length)])[-length:], whole)
    for cuts in chunkings:
        bounds = [0, *cuts, length]
        parts = [[(0, begin, end)] for begin, end in pairwise(bounds)]
        assert torch.equal(model.run_all("cpu", *parts), whole)
    company = [*others, (0, length - 1, length)]
    assert torch.equal(model.run("cpu", [(0, 0, length - 1)], company)[-1:], whole[-1:])


@pytest.mark.parametrize("format", FORMATS)
def test_a_long_context_gives_the_same_bits_shared_by_threads_or_not(
    format: str, num_threads: int
) -> None:
    """One token by itself shares its stretches out, in each layer anew; two in a chunk do not."""
    model = Model(format, heads=2, kv_heads=1, windows=(0, 1100))
    prompt = [(0, 0, 1200)]
    alone = model.run("cpu", prompt, [(0, 1200, 1201)], [(0, 1201, 1202)])
    assert torch.equal(alone, model.run("cpu", prompt, [(0, 1200, 1202)]))


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


LEVEL_PROGRAM = """
import sys, torch
from engine.core.ops import library as ops
from tests.csrc.test_decoder import run_of_each_format
ops.load_library()
torch.set_num_threads(1)
torch.save(run_of_each_format("cpu"), sys.argv[1])
"""


@functools.cache
def run_of_each_format(backend: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits of a small model, and the last ones of a long text in a wide model."""
    return {
        format: (
            Model(format).run_all(backend, *STEPS),
            Model(format, **WIDE, layers=1, windows=(0,)).run_all(backend, *LONG_STEPS)[-NUM_LATE:],
        )
        for format in FORMATS
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "level", ["baseline", "x86_64_v3", "x86_64_v4", "avx512_vnni", "avx512_bf16"]
)
def test_each_level_equals_the_reference(level: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEVEL_PROGRAM, str(tmp_path / "logits.pt")]
    environment = {**os.environ, "PARLEY_CPU_LEVEL": level}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if f"PARLEY_CPU_LEVEL is {level}, this machine has" in done.stderr:
        # Its instructions would end the process: another machine has to try them.
        pytest.skip(f"this machine has no {level}")
    assert done.returncode == 0, done.stderr
    results = torch.load(tmp_path / "logits.pt")
    for format, references in run_of_each_format("torch").items():
        for ours, reference in zip(results[format], references, strict=True):
            check_equals_reference(ours, reference, format, level)


@pytest.mark.parametrize("is_last_alone", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_hidden_states_equal_the_reference_beside_and_without_logits(
    format: str, is_last_alone: bool
) -> None:
    model = Model(format)
    inputs = model.inputs([(0, 0, 1), (1, 0, 9), (2, 0, 30)])
    if is_last_alone:
        inputs = inputs._replace(logits_rows=inputs.logits_rows[:0])
    rows = torch.tensor([39, 3, 3]) if is_last_alone else torch.arange(40)
    results = []
    for backend in ("cpu", "torch"):
        hidden = HiddenRows(rows, torch.full((len(rows), 64), torch.nan))
        logits = model.logits(inputs)
        ops.choose(backend).decoder_step(inputs, model.load(), logits, hidden)
        results.append((hidden.out, logits))
    (ours, our_logits), (reference, _) = results
    check_equals_reference(ours, reference, format)
    assert len(our_logits) == (0 if is_last_alone else 3)
    if not is_last_alone:
        assert our_logits.equal(model.run("cpu", [(0, 0, 1), (1, 0, 9), (2, 0, 30)]))


@pytest.mark.parametrize(
    ("rows", "out", "problem"),
    [
        (torch.tensor([1]), torch.zeros(1, 64), "hidden_rows has 1, the limit is 1"),
        (torch.tensor([-1]), torch.zeros(1, 64), "hidden_rows has -1"),
        (torch.tensor([0, 0]), torch.zeros(1, 64), "hidden_rows is a row of 1 int64"),
        (torch.tensor([0]), torch.zeros(1, 63), "hidden is contiguous float32"),
        (torch.tensor([0]), torch.zeros(1, 64).bfloat16(), "hidden is contiguous float32"),
        (torch.tensor([0]), torch.zeros(64), "hidden is contiguous float32"),
        (torch.tensor([0]), None, "hidden comes with hidden_rows"),
        (None, torch.zeros(1, 64), "hidden comes with hidden_rows"),
    ],
)
def test_hidden_rows_that_do_not_fit_are_refused(rows: Any, out: Any, problem: str) -> None:
    arguments = Model("float32").arguments([(0, 0, 1)])
    with pytest.raises(RuntimeError, match=problem):
        torch.ops.parley.decoder_step(*arguments, rows, out)


def test_opcheck_with_hidden_rows() -> None:
    arguments = Model("float32").arguments([(0, 0, 9)])
    torch.library.opcheck(
        torch.ops.parley.decoder_step.default,
        (*arguments, torch.tensor([8]), torch.zeros(1, 64)),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("format", FORMATS)
def test_opcheck(format: str) -> None:
    model = Model(format)
    arguments = model.arguments([(0, 0, 9)])
    torch.library.opcheck(
        torch.ops.parley.decoder_step.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (0, torch.tensor([50]), "input_ids has 50, the limit is 50"),
        (1, torch.tensor([MAX_POSITIONS]), f"positions has {MAX_POSITIONS}"),
        (2, torch.tensor([NUM_BLOCKS * 16]), f"slot_mapping has {16 * NUM_BLOCKS}"),
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
        (15, [torch.zeros(2, 8, 64, 16, 2)] * 4, "panels are"),
        (15, [torch.zeros(8, 64, 16, 1)] * 4, "stacked by layer"),
        (15, [torch.zeros(1, 8, 64, 16, 1)] * 4, "a piece is none of its weight's"),
        (16, [torch.empty(0)] * 3, "each of weights has its scales"),
        (18, torch.zeros(2, 4, 64, 16, 1), "the output layer is stacked as one"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(place: int, value: Any, problem: str) -> None:
    model = Model("float32")
    arguments = list(model.arguments([(0, 0, 1)]))
    arguments[place] = value
    with pytest.raises(RuntimeError, match=problem):
        torch.ops.parley.decoder_step(*arguments)


@pytest.mark.parametrize(
    "scales",
    [None, torch.zeros(2, NUM_BLOCKS, 2, 2, 8), torch.zeros(2, NUM_BLOCKS, 2, 2, 16).half()],
)
def test_scales_that_do_not_fit_an_int8_cache_are_refused(scales: Tensor | None) -> None:
    model = Model("float32, int8 cache")
    arguments = list(model.arguments([(0, 0, 1)]))
    arguments[9] = scales
    with pytest.raises(RuntimeError, match="scales"):
        torch.ops.parley.decoder_step(*arguments)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_in_its_row(value: float, format: str) -> None:
    model = Model(format)
    expected = model.run("cpu", [(0, 0, 1), (1, 0, 1)])
    assert model.weights.embeddings is not None
    # Sequence 0 begins with token 0, sequence 1 with another.
    model.weights.embeddings[0, 3] = value
    logits = model.run("cpu", [(0, 0, 1), (1, 0, 1)])
    assert not logits[0].isfinite().any()
    assert torch.equal(logits[1], expected[1])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_does_not_reach_the_tokens_before_it(value: float, format: str) -> None:
    """Though their queries are taken together with those that see it."""
    model = Model(format, vocab=211)
    parts = [(0, 0, 64), (1, 0, 9)]
    expected = model.run_all("cpu", parts)
    ids = model.inputs(parts).input_ids
    assert (ids == ids[20]).sum() == 1
    assert model.weights.embeddings is not None
    model.weights.embeddings[ids[20], 3] = value
    logits = model.run_all("cpu", parts)
    assert not logits[20:64].isfinite().any()
    assert torch.equal(logits[:20], expected[:20])
    assert torch.equal(logits[64:], expected[64:])
