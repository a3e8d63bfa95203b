"""Weights as `linear` and `decoder_step` of csrc read them: panels of 16 outputs (`product.h`).

A format is named by how it stores a weight: "float32", "bfloat16", "int8" with one scale for every
128 inputs of an output, or "int4" with a scale and a least number for every 32 (`four_bits.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops import four_bits
from engine.core.tensors import huge_pages

PANEL_OUTPUTS = 16
GROUP_INPUTS = 128  # inputs that share a scale
INT8_ZERO = 128  # int8 weights are stored unsigned
# Inputs of an output that lie together.
INTERLEAVED = {"float32": 1, "bfloat16": 2, "int8": 4, "int4": 8}
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.uint8,
    "int4": torch.uint8,  # two inputs each
}
# Packed at once: copies on the way are of so many, not of a whole weight, and fit into a cache.
SLAB_WEIGHTS = 1 << 18


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The same weight of several layers, [num_outputs, num_inputs] each."""

    # [layers, panels, inputs / interleaved, 16, interleaved], for int4 with 4 bytes at the end
    panels: Tensor
    # int8: [layers, panels, groups, 16] float32; int4: [layers, panels, parts, 2, 16] float16
    scales: Tensor | None

    @classmethod
    def allocate(
        cls, num_layers: int, num_outputs: int, num_inputs: int, format: str
    ) -> "PackedWeight":
        """Room for all layers, in huge pages where the system gives such."""
        num_panels = -(-num_outputs // PANEL_OUTPUTS)
        n = INTERLEAVED[format]
        num_bytes = n // 2 if format == "int4" else n
        shape = (num_layers, num_panels, -(-num_inputs // n), PANEL_OUTPUTS, num_bytes)
        scales = None
        if format == "int4":
            num_parts = -(-num_inputs // four_bits.PART_INPUTS)
            scales = huge_pages.zeros(
                (num_layers, num_panels, num_parts, 2, PANEL_OUTPUTS), torch.float16
            )
        if format == "int8":
            num_groups = -(-num_inputs // GROUP_INPUTS)
            scales = huge_pages.zeros(
                (num_layers, num_panels, num_groups, PANEL_OUTPUTS), torch.float32
            )
        return cls(huge_pages.zeros(shape, DTYPES[format]), scales)

    @property
    def format(self) -> str:
        if self.scales is not None:
            return "int4" if self.scales.dtype == torch.float16 else "int8"
        return "float32" if self.panels.dtype == torch.float32 else "bfloat16"

    @property
    def num_inputs(self) -> int:
        """With padding."""
        return self.panels.shape[2] * INTERLEAVED[self.format]

    def fill(self, layer: int, weight: Tensor) -> None:
        """Pack the weight of one layer, [num_outputs, num_inputs]."""
        zero, interleaved = 0, self.panels.shape[-1]
        for panels, slab in _slabs(weight):
            if self.format == "int4":
                self._fill_int4(layer, panels, four_bits.quantize(slab))
                continue
            if self.scales is not None:
                slab, scales = quantize(slab)
                zero = INT8_ZERO
                self.scales[layer, panels] = to_panels(scales, 1).squeeze(-1)
            self.panels[layer, panels] = to_panels(slab, interleaved, zero)

    def _fill_int4(self, layer: int, panels: slice, numbers: four_bits.FourBits) -> None:
        assert self.scales is not None
        codes = to_panels(numbers.codes, INTERLEAVED["int4"])
        self.panels[layer, panels] = four_bits.to_bytes(codes)
        for place, part in enumerate((numbers.scales, numbers.least)):
            self.scales[layer, panels, :, place] = to_panels(part, 1).squeeze(-1)

    def unpack(self, layer: int) -> Tensor:
        """[outputs, inputs] float32, both with their padding."""
        return unpack(self.panels[layer], None if self.scales is None else self.scales[layer])


def unpack(panels: Tensor, scales: Tensor | None) -> Tensor:
    """What one layer's panels stand for: [outputs, inputs] float32, both with their padding."""
    if scales is not None and scales.dtype == torch.float16:
        return _unpack_int4(panels, scales)
    num_panels, num_steps, _, n = panels.shape
    weights = panels.float().transpose(1, 2).reshape(num_panels, PANEL_OUTPUTS, -1)
    if scales is not None:
        of_inputs = scales.transpose(1, 2).repeat_interleave(GROUP_INPUTS, -1)
        weights = (weights - INT8_ZERO) * of_inputs[..., : num_steps * n]
    return weights.flatten(0, 1)


def _unpack_int4(panels: Tensor, scales: Tensor) -> Tensor:
    codes = four_bits.from_bytes(panels)  # [panels, steps, 16, 8]
    numbers = codes.float().transpose(1, 2).reshape(len(panels), PANEL_OUTPUTS, -1)
    scale, least = (
        part.float().transpose(1, 2).repeat_interleave(four_bits.PART_INPUTS, -1)
        for part in scales.unbind(2)
    )
    num_inputs = numbers.shape[-1]
    return (numbers * scale[..., :num_inputs] + least[..., :num_inputs]).flatten(0, 1)


def _slabs(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Outputs of whole panels in turn, and the places of these panels among all."""
    num_panels = max(1, SLAB_WEIGHTS // (PANEL_OUTPUTS * weight.shape[1]))
    for index, slab in enumerate(torch.split(weight, num_panels * PANEL_OUTPUTS)):
        yield slice(index * num_panels, (index + 1) * num_panels), slab


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
