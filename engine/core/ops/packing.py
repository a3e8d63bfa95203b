"""Weights as `linear` and `decoder_step` of csrc read them: panels of 16 outputs (`product.h`).

A format is named by how it stores a weight: "float32", "bfloat16", or "int8" with one scale for
every 128 inputs of an output.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.tensors import huge_pages

PANEL_OUTPUTS = 16
GROUP_INPUTS = 128  # inputs that share a scale
INT8_ZERO = 128  # int8 weights are stored unsigned
INTERLEAVED = {"float32": 1, "bfloat16": 2, "int8": 4}  # inputs of an output that lie together
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8}
SLAB_WEIGHTS = 4 << 20  # packed at once: copies on the way are of so many, not of a whole weight


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The same weight of several layers, [num_outputs, num_inputs] each."""

    panels: Tensor  # [layers, panels, inputs / interleaved, 16, interleaved]
    scales: Tensor | None  # int8: [layers, panels, groups, 16] float32

    @classmethod
    def allocate(
        cls, num_layers: int, num_outputs: int, num_inputs: int, format: str
    ) -> "PackedWeight":
        """Room for all layers, in huge pages where the system gives such."""
        num_panels = -(-num_outputs // PANEL_OUTPUTS)
        n = INTERLEAVED[format]
        shape = (num_layers, num_panels, -(-num_inputs // n), PANEL_OUTPUTS, n)
        scales = None
        if format == "int8":
            num_groups = -(-num_inputs // GROUP_INPUTS)
            scales = huge_pages.zeros(
                (num_layers, num_panels, num_groups, PANEL_OUTPUTS), torch.float32
            )
        return cls(huge_pages.zeros(shape, DTYPES[format]), scales)

    def fill(self, layer: int, weight: Tensor) -> None:
        """Pack the weight of one layer, [num_outputs, num_inputs]."""
        zero, interleaved = 0, self.panels.shape[-1]
        for panels, slab in _slabs(weight):
            if self.scales is not None:
                slab, scales = quantize(slab)
                zero = INT8_ZERO
                self.scales[layer, panels] = to_panels(scales, 1).squeeze(-1)
            self.panels[layer, panels] = to_panels(slab, interleaved, zero)

    def unpack(self, layer: int) -> Tensor:
        """[outputs, inputs] float32, both with their padding."""
        return unpack(self.panels[layer], None if self.scales is None else self.scales[layer])


def unpack(panels: Tensor, scales: Tensor | None) -> Tensor:
    """What one layer's panels stand for: [outputs, inputs] float32, both with their padding."""
    num_panels, num_steps, _, n = panels.shape
    weights = panels.float().transpose(1, 2).reshape(num_panels, PANEL_OUTPUTS, -1)
    if scales is not None:
        of_inputs = scales.transpose(1, 2).repeat_interleave(GROUP_INPUTS, -1)
        weights = (weights - INT8_ZERO) * of_inputs[..., : num_steps * n]
    return weights.flatten(0, 1)


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
