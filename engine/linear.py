"""Linear layers with packed weights, on a CPU: `torch.ops.parley.linear`.

Their sums have one order, whatever the number of rows, so that these layers need no padding
(engine/invariance.py); and with few rows they are about twice as fast as torch's own. In float32
they replace torch's, and with `quantization="int8"` those of every other type, too. Otherwise
torch's own is kept in bfloat16: what was measured gave the same bits for any number of rows.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.fused.packing import INTERLEAVED, PackedWeight
from engine.ops import Linear, Ops

logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """In the place of an `nn.Linear`, or of GPT-2's `Conv1D`, whose weight lies the other way.

    `weight` has the shape of the layer's and no memory: models ask it for shape and dtype.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, ops: Ops, format: str = "float32"
    ) -> None:
        super().__init__()
        packed = PackedWeight.allocate(1, len(weight), weight.shape[1], format)
        packed.fill(0, weight)
        scales = None if packed.scales is None else packed.scales[0]
        self.register_buffer("panels", packed.panels[0], persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.float(), persistent=False)
        self.weight = torch.empty_like(weight, device="meta")
        self._compute: Linear = ops.linear

    def forward(self, rows: Tensor) -> Tensor:
        """[..., num_inputs] → [..., num_outputs], computed in float32."""
        num_outputs, num_inputs = self.weight.shape
        flat = rows.reshape(-1, num_inputs).float()
        out = flat.new_empty((len(flat), num_outputs))
        buffers = self._buffers
        panels = self.get_buffer("panels")
        self._compute(flat, panels, buffers["scales"], buffers["bias"], out)
        return out.view(*rows.shape[:-1], num_outputs).to(rows.dtype)


def pack_layers(model: nn.Module, ops: Ops, format: str = "float32") -> None:
    """Replace the linear layers of a model on a CPU: the float32 ones, or for "int8" all.

    Layers of other kinds stay, and those whose inputs don't come in whole fours.
    """
    packed: dict[nn.Module, PackedLinear] = {}  # a module may have several parents
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() leaves out repeats
            if child is None or type(child) not in (nn.Linear, Conv1D):
                continue
            layer: Any = child
            weight: Tensor = layer.weight.detach()
            if type(child) is Conv1D:
                weight = weight.T
            if format == "float32" and weight.dtype != torch.float32:
                continue
            if weight.shape[1] % INTERLEAVED[format]:
                continue
            if child not in packed:
                bias = None if layer.bias is None else layer.bias.detach()
                packed[child] = PackedLinear(weight, bias, ops, format)
            setattr(parent, name, packed[child])
    if format == "int8":
        num_packed = sum(layer.weight.numel() for layer in packed.values())
        logger.info("%.1fM weights in 8 bits", num_packed / 1e6)
