"""Linear layers with packed weights, for float32 on a CPU: `torch.ops.parley.linear`.

Its sums have one order, whatever the number of rows, so that these layers need no padding
(engine/invariance.py); and with few rows it is about twice as fast as torch's own. In bfloat16
torch's own is kept: what was measured gave the same bits for any number of rows.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.fused.packing import pack_weight
from engine.ops import Ops


class PackedLinear(nn.Module):
    """In the place of an `nn.Linear`, or of GPT-2's `Conv1D`, whose weight lies the other way.

    `weight` has the shape of the layer's and no memory: models ask it for shape and dtype.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, ops: Ops) -> None:
        super().__init__()
        self.register_buffer("panels", pack_weight(weight), persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.weight = torch.empty_like(weight, device="meta")
        self._compute: Callable[[Tensor, Tensor, Tensor | None, Tensor], None] = ops.linear

    def forward(self, rows: Tensor) -> Tensor:
        """[..., num_inputs] → [..., num_outputs]"""
        num_outputs, num_inputs = self.weight.shape
        out = rows.new_empty((*rows.shape[:-1], num_outputs))
        panels, bias = self.get_buffer("panels"), self._buffers["bias"]
        flat = rows.reshape(-1, num_inputs)
        self._compute(flat, panels, bias, out.view(-1, num_outputs))
        return out


def pack_layers(model: nn.Module, ops: Ops) -> None:
    """Replace the float32 linear layers of a model on a CPU. Layers of other kinds stay."""
    packed: dict[nn.Module, PackedLinear] = {}  # a module may have several parents
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() leaves out repeats
            if child is None or type(child) not in (nn.Linear, Conv1D):
                continue
            layer: Any = child
            weight: Tensor = layer.weight.detach()
            if weight.dtype != torch.float32:
                continue
            if child not in packed:
                bias = None if layer.bias is None else layer.bias.detach()
                packed[child] = PackedLinear(
                    weight.T if type(child) is Conv1D else weight, bias, ops
                )
            setattr(parent, name, packed[child])
