"""Adapters as `decoder_step` reads them: csrc/cpu/decoder/adapters.h says how they lie.

An adapter adds to a module's product `up @ down @ row`. Both matrices of all modules of a layer lie
one after the other, packed as weights are (`packing.py`), in the order of `MODULES`. All have the
same rank, an even one: smaller ones end in zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.packing import DTYPES, INTERLEAVED, PANEL_OUTPUTS, to_panels, unpack
from engine.core.tensors import huge_pages

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

ModuleSizes = tuple[tuple[int, int], ...]  # inputs and outputs of each, as the step computes them
LowRankPair = tuple[Tensor, Tensor]  # down [rank, inputs], up [outputs, rank]


class StepAdapters(NamedTuple):
    """Those of one step. In the op's order."""

    rows: Tensor  # [num_rows] int64: which of them a row has, -1 is none
    weights: list[Tensor]  # of each adapter [layers, n] float32 or bfloat16
    targets: Tensor  # [num_adapters, layers] int64: a bit for each module that it has
    ranks: Tensor  # [num_adapters] int64


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """One adapter, for all steps."""

    weights: Tensor  # [layers, n] float32 or bfloat16
    targets: Tensor  # [layers] int64
    rank: int


def pack_adapter(
    sizes: ModuleSizes, layers: list[Mapping[int, LowRankPair]], rank: int, format: str
) -> PackedAdapter:
    """`layers` have the pairs of each layer, by the module's place; `rank` is the largest.

    `format` is "float32" or "bfloat16"; sizes that bfloat16 has no pairs for stay float32.
    """
    rank += rank % 2
    dtype = DTYPES["float32" if any(size % 2 for size, _ in sizes) else format]
    packed = huge_pages.zeros((len(layers), sum(_lengths(sizes, rank))), dtype)
    targets = torch.zeros(len(layers), dtype=torch.int64)
    for layer, pairs in enumerate(layers):
        places = _matrices(packed[layer], sizes, rank)
        for module, pair in pairs.items():
            targets[layer] += 1 << module
            for panels, weight in zip(places[module], pair, strict=True):
                num_panels, num_steps, num_outputs, interleaved = panels.shape
                missing = (
                    num_steps * interleaved - weight.shape[1],
                    num_panels * num_outputs - weight.shape[0],
                )
                padded = functional.pad(weight, (0, missing[0], 0, missing[1]))
                panels.copy_(to_panels(padded, interleaved))
    return PackedAdapter(packed, targets, rank)


def unpack_module(
    adapters: StepAdapters, index: int, sizes: ModuleSizes, layer: int, module: int
) -> LowRankPair | None:
    """Both matrices with their padding: [padded rank, inputs] and [padded outputs, rank]."""
    if not int(adapters.targets[index, layer]) >> module & 1:
        return None
    weights, rank = adapters.weights[index][layer], int(adapters.ranks[index])
    down, up = (unpack(panels, None) for panels in _matrices(weights, sizes, rank)[module])
    return down, up


def _matrices(weights: Tensor, sizes: ModuleSizes, rank: int) -> list[LowRankPair]:
    """Views of one layer's weights, [n]: of each module twice [panels, inputs / i, 16, i]."""
    parts = torch.split(weights, _lengths(sizes, rank))
    interleaved = 1 if weights.dtype == torch.float32 else INTERLEAVED["bfloat16"]
    inputs = [number for num_inputs, _ in sizes for number in (num_inputs, rank)]
    shaped = [
        part.view(-1, number // interleaved, PANEL_OUTPUTS, interleaved)
        for part, number in zip(parts, inputs, strict=True)
    ]
    return list(zip(shaped[::2], shaped[1::2], strict=True))


def _lengths(sizes: ModuleSizes, rank: int) -> list[int]:
    """Numbers of one layer: of each module those of both matrices."""
    return [
        length
        for num_inputs, num_outputs in sizes
        for length in (_padded(rank) * num_inputs, _padded(num_outputs) * rank)
    ]


def _padded(num_outputs: int) -> int:
    return num_outputs + -num_outputs % PANEL_OUTPUTS
