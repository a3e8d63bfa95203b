"""Packed linear layers stand in for torch's, and for nothing else."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from engine import ops
from engine.fused.packing import pack_weight
from engine.linear import PackedLinear, pack_layers


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 20)
        self.second = nn.Linear(20, 7, bias=False)
        self.conv = Conv1D(9, 7)
        self.shared = self.first
        self.other = nn.Linear(6, 6, dtype=torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(self.second(self.first(rows)))
        return out


def test_a_packed_model_gives_what_it_gave() -> None:
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    nn.init.normal_(model.conv.bias)
    rows = torch.randn(1, 5, 6)
    expected = model(rows)
    pack_layers(model, ops.REFERENCE)
    assert all(isinstance(m, PackedLinear) for m in (model.first, model.second, model.conv))
    torch.testing.assert_close(model(rows), expected)
    assert model(rows[:, :0]).shape == (1, 0, 9)


def test_a_shared_layer_stays_shared_and_bfloat16_stays_torchs() -> None:
    model = Model().requires_grad_(False)
    pack_layers(model, ops.REFERENCE)
    assert model.shared is model.first
    assert type(model.other) is nn.Linear


def test_a_packed_weight_has_a_shape_and_no_memory() -> None:
    layer = PackedLinear(torch.randn(20, 6), None, ops.REFERENCE)
    assert (layer.weight.shape, layer.weight.dtype) == ((20, 6), torch.float32)
    assert layer.weight.is_meta
    assert layer.get_buffer("panels").shape == (2, 6, 16)


@pytest.mark.parametrize("num_outputs", [1, 16, 33])
def test_packing_loses_nothing_and_pads_with_zeros(num_outputs: int) -> None:
    weight = torch.randn(num_outputs, 5)
    panels = pack_weight(weight)
    flat = panels.transpose(1, 2).flatten(0, 1)
    assert torch.equal(flat[:num_outputs], weight)
    assert not flat[num_outputs:].any()
