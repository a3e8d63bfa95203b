"""Weights as `linear` and `decoder_step` of csrc read them: panels of 16 outputs (`product.h`).

A format is named by how it stores a weight: "float32", "bfloat16", "int8" with one scale for every
128 inputs of an output, "int4" besides with a step and a zero for every 16 (`four_bits.py`);
"int4_parts", "int6" and "int8_parts", as weights are numbers in their files, with a scale for every
32 inputs or every 16, and with a least number for each where that is needed (`numbers.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops import four_bits, words
from engine.core.ops.four_bits import FourBits
from engine.core.ops.numbers import ZEROS, NumberKind, Numbers
from engine.core.tensors import huge_pages

PANEL_OUTPUTS = 16
GROUP_INPUTS = 128  # inputs that share a scale
INT8_ZERO = 128  # int8 weights are stored unsigned
# Inputs of an output that lie together.
INTERLEAVED = {
    "float32": 1,
    "bfloat16": 2,
    "int8": 4,
    "int4": 8,
    "int8_parts": 4,
    "int6": 16,
    "int4_parts": 8,
}
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.uint8,
    "int4": torch.int32,  # eight inputs each
    "int8_parts": torch.uint8,
    "int6": torch.int32,  # sixteen inputs in three
    "int4_parts": torch.int32,  # eight inputs each
}
PARTS = {8: "int8_parts", 6: "int6", 4: "int4_parts"}  # bits → format
BITS = {format: bits for bits, format in PARTS.items()}
# Of a group: how many and what.
SCALES = {"int8": (PANEL_OUTPUTS, torch.float32), "int4": (PANEL_OUTPUTS * 3 // 2, torch.int32)}
# Packed at once: copies on the way are of so many, not of a whole weight, and fit into a cache.
SLAB_WEIGHTS = 1 << 18


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The same weight of several layers, [num_outputs, num_inputs] each."""

    # [layers, panels, inputs / interleaved, 16, interleaved]; int6: 3, 16 at the end, four bits: 1
    panels: Tensor
    # int8: [layers, panels, groups, 16] float32; int4: [layers, panels, groups, 24] int32, of which
    # 16 hold eight pairs of an output each, the others float16; in parts: [layers, panels, parts,
    # 16] float16, or [layers, panels, parts, 2, 16] with least numbers
    scales: Tensor | None

    @classmethod
    def allocate(
        cls,
        num_layers: int,
        num_outputs: int,
        num_inputs: int,
        format: str,
        part_inputs: int = 32,
        *,
        has_least: bool = False,
    ) -> "PackedWeight":
        """Room for all layers, in huge pages where the system gives such."""
        num_panels = -(-num_outputs // PANEL_OUTPUTS)
        n = INTERLEAVED[format]
        end = (3, PANEL_OUTPUTS) if format == "int6" else (PANEL_OUTPUTS, 1 if n == 8 else n)
        shape = (num_layers, num_panels, -(-num_inputs // n), *end)
        scales = None
        if format in BITS:
            of_part = (2, PANEL_OUTPUTS) if has_least else (PANEL_OUTPUTS,)
            num_parts = -(-num_inputs // part_inputs)
            scales = huge_pages.zeros((num_layers, num_panels, num_parts, *of_part), torch.float16)
        if format in SCALES:
            num_groups = -(-num_inputs // GROUP_INPUTS)
            count, dtype = SCALES[format]
            scales = huge_pages.zeros((num_layers, num_panels, num_groups, count), dtype)
        return cls(huge_pages.zeros(shape, DTYPES[format]), scales)

    @classmethod
    def of_numbers(
        cls, num_layers: int, num_outputs: int, num_inputs: int, kind: NumberKind
    ) -> "PackedWeight":
        """Room for weights that are numbers of this kind, or of narrower ones."""
        bits, part_inputs, has_least = kind
        sizes = num_layers, num_outputs, num_inputs
        return cls.allocate(*sizes, PARTS[bits], part_inputs, has_least=has_least)

    @property
    def format(self) -> str:
        return _format(self.panels, self.scales)

    @property
    def num_inputs(self) -> int:
        """With padding."""
        return self.panels.shape[2] * INTERLEAVED[self.format]

    def fill(self, layer: int, weight: Tensor, first_output: int = 0) -> None:
        """Pack the weight of one layer, [num_outputs, num_inputs], or a piece of whole panels."""
        zero, interleaved = 0, self.panels.shape[-1]
        for panels, slab in _slabs(weight, first_output // PANEL_OUTPUTS):
            if self.format == "int4":
                self._put_four_bits(layer, panels, four_bits.quantize(slab))
                continue
            if self.scales is not None:
                slab, scales = quantize(slab)
                zero = INT8_ZERO
                self.scales[layer, panels] = to_panels(scales, 1).squeeze(-1)
            self.panels[layer, panels] = to_panels(slab, interleaved, zero)

    def fill_numbers(self, layer: int, numbers: Numbers, first_output: int = 0) -> None:
        """Pack the weight of one layer as it is, into as many bits as it has, or into more.

        Or a piece of it, of whole panels.
        """
        assert self.scales is not None and numbers.bits <= BITS[self.format]
        numbers = numbers.in_parts_of(_part_inputs(self.num_inputs, self.scales.shape[2]))
        if _has_least(self.panels, self.scales):
            numbers = numbers.with_least()
        for panels, codes in _slabs(numbers.codes, first_output // PANEL_OUTPUTS):
            first = panels.start * PANEL_OUTPUTS - first_output
            rows = slice(first, first + len(codes))
            least = None if numbers.least is None else numbers.least[rows]
            part = numbers._replace(codes=codes, scales=numbers.scales[rows], least=least)
            self._put(layer, panels, part.in_bits(BITS[self.format]))

    def _put(self, layer: int, panels: slice, numbers: Numbers) -> None:
        assert self.scales is not None
        assert (numbers.least is not None) == _has_least(self.panels, self.scales)
        codes = to_panels(numbers.codes, INTERLEAVED[self.format])
        self.panels[layer, panels] = _to_words(codes, self.format)
        scales = to_panels(numbers.scales, 1).squeeze(-1)
        if numbers.least is None:
            self.scales[layer, panels] = scales
        else:
            least = to_panels(numbers.least, 1).squeeze(-1)
            self.scales[layer, panels] = torch.stack((scales, least), dim=2)

    def _put_four_bits(self, layer: int, panels: slice, given: FourBits) -> None:
        assert self.scales is not None
        codes = to_panels(given.codes, INTERLEAVED["int4"])
        self.panels[layer, panels] = words.four_bits_to_words(codes)
        pairs = to_panels(given.pairs.flatten(1), four_bits.PARTS)
        scales = to_panels(given.scales, 1).squeeze(-1).clone(memory_format=torch.contiguous_format)
        stored = (words.four_bits_to_words(pairs).squeeze(-1), scales.view(torch.int32))
        self.scales[layer, panels] = torch.cat(stored, dim=-1)

    def unpack(self, layer: int) -> Tensor:
        """[outputs, inputs] float32, both with their padding."""
        return unpack(self.panels[layer], None if self.scales is None else self.scales[layer])


def unpack(panels: Tensor, scales: Tensor | None) -> Tensor:
    """What one layer's panels stand for: [outputs, inputs] float32, both with their padding."""
    if (format := _format(panels, scales)) in BITS:
        assert scales is not None
        codes = _of_words(panels, format)
        zero = 0 if _has_least(panels, scales) else ZEROS[BITS[format]]
        return _unpack_parts(codes, scales, zero)
    if format == "int4":
        assert scales is not None
        return _unpack_four_bits(panels, scales)
    num_panels, num_steps, _, n = panels.shape
    weights = panels.float().transpose(1, 2).reshape(num_panels, PANEL_OUTPUTS, -1)
    if scales is not None:
        of_inputs = scales.transpose(1, 2).repeat_interleave(GROUP_INPUTS, -1)
        weights = (weights - INT8_ZERO) * of_inputs[..., : num_steps * n]
    return weights.flatten(0, 1)


def _unpack_four_bits(panels: Tensor, scales: Tensor) -> Tensor:
    codes, pairs = (
        words.four_bits_of_words(each).transpose(1, 2).reshape(-1, each.shape[1] * 8)
        for each in (panels, scales[..., :PANEL_OUTPUTS, None])
    )
    halves = scales[..., PANEL_OUTPUTS:].contiguous().view(torch.float16)
    factors = halves.float().transpose(1, 2).flatten(0, 1).repeat_interleave(GROUP_INPUTS, -1)
    return four_bits.whole_numbers(codes, pairs) * factors[:, : codes.shape[1]]


def _unpack_parts(codes: Tensor, scales: Tensor, zero: int) -> Tensor:
    """`codes` are [panels, steps, 16, n]. Of these `zero` stands for 0, or 0 for a least number."""
    numbers = codes.float().transpose(1, 2).reshape(len(codes), PANEL_OUTPUTS, -1) - zero
    num_inputs, num_parts = numbers.shape[-1], scales.shape[1]
    part_inputs = _part_inputs(num_inputs, num_parts)
    factors = (
        part.float().transpose(1, 2).repeat_interleave(part_inputs, -1)[..., :num_inputs]
        for part in (scales.unbind(2) if scales.dim() == 4 else (scales,))
    )
    numbers.mul_(next(factors))
    for least in factors:
        numbers.add_(least)
    return numbers.flatten(0, 1)


def _part_inputs(num_inputs: int, num_parts: int) -> int:
    return 32 if -(-num_inputs // 32) == num_parts else 16


def _format(panels: Tensor, scales: Tensor | None) -> str:
    if scales is None:
        return "float32" if panels.dtype == torch.float32 else "bfloat16"
    if panels.dtype == torch.uint8:
        return "int8_parts" if scales.dtype == torch.float16 else "int8"
    if panels.shape[-1] != 1:
        return "int6"
    return "int4_parts" if scales.dtype == torch.float16 else "int4"


def _has_least(panels: Tensor, scales: Tensor) -> bool:
    return scales.dim() == panels.dim()


def _to_words(codes: Tensor, format: str) -> Tensor:
    if format == "int4_parts":
        return words.four_bits_to_words(codes)
    return words.six_bits_to_words(codes) if format == "int6" else codes


def _of_words(panels: Tensor, format: str) -> Tensor:
    if format == "int4_parts":
        return words.four_bits_of_words(panels)
    return words.six_bits_of_words(panels) if format == "int6" else panels


def _slabs(weight: Tensor, first_panel: int) -> Iterator[tuple[slice, Tensor]]:
    """Outputs of whole panels in turn, and the places of these panels among all."""
    num_panels = max(1, SLAB_WEIGHTS // (PANEL_OUTPUTS * weight.shape[1]))
    for slab in torch.split(weight, num_panels * PANEL_OUTPUTS):
        last_panel = first_panel + -(-len(slab) // PANEL_OUTPUTS)
        yield slice(first_panel, last_panel), slab
        first_panel = last_panel


def to_panels(weight: Tensor, interleaved: int, zero: int = 0) -> Tensor:
    """[num_outputs, num_inputs] → [panels, inputs / interleaved, 16, interleaved], as a view.

    Outputs are padded to whole panels and inputs to whole steps, both with `zero`.
    """
    num_outputs, num_inputs = weight.shape
    padding = (0, -num_inputs % interleaved, 0, -num_outputs % PANEL_OUTPUTS)
    padded = functional.pad(weight, padding, value=zero)
    num_steps = padded.shape[1] // interleaved
    return padded.view(-1, PANEL_OUTPUTS, num_steps, interleaved).transpose(1, 2)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[..., inputs] → the same in uint8, and scales [..., groups]: (stored - 128) * scale."""
    num_inputs = weight.shape[-1]
    padded = functional.pad(weight.float(), (0, -num_inputs % GROUP_INPUTS))
    groups = padded.view(*weight.shape[:-1], -1, GROUP_INPUTS)
    scales = groups.abs().amax(-1) / 127
    numbers = (groups / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)).round()
    stored = (numbers + INT8_ZERO).to(torch.uint8).flatten(-2)[..., :num_inputs]
    return stored, scales


def round_rows(rows: Tensor) -> Tensor:
    """[num_rows, inputs] → the same in 255 steps from the largest of each group to its opposite."""
    num_inputs = rows.shape[1]
    padded = functional.pad(rows, (0, -num_inputs % GROUP_INPUTS))
    groups = padded.view(len(rows), padded.shape[1] // GROUP_INPUTS, GROUP_INPUTS)
    largest = groups.abs().amax(-1, keepdim=True)
    numbers = (groups * (127 / largest.clamp(min=1e-30))).round()
    return (numbers * (largest / 127)).flatten(1)[:, :num_inputs]


def join_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """Panels of both in turn, each padded to whole panels: [2 * padded outputs, inputs]."""
    num_outputs, num_inputs = gate.shape
    padding = (0, 0, 0, -num_outputs % PANEL_OUTPUTS)
    panels = [functional.pad(w, padding).view(-1, PANEL_OUTPUTS, num_inputs) for w in (gate, up)]
    return torch.stack(panels, dim=1).flatten(0, 2)
