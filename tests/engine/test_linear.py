"""Packed linear layers stand in for torch's, and for nothing else."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from engine import ops
from engine.linear import PackedLinear, pack_layers
from tests.built_kernels import needs_kernels


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
    assert layer.get_buffer("panels").shape == (2, 6, 16, 1)


def test_in_8_bits_layers_of_every_dtype_are_packed_if_their_inputs_come_in_fours() -> None:
    model = Model().requires_grad_(False)
    pack_layers(model, ops.REFERENCE, "int8")
    assert type(model.first) is nn.Linear and type(model.other) is nn.Linear  # six inputs
    assert type(model.conv) is Conv1D  # seven
    assert isinstance(model.second, PackedLinear)
    assert model.second.get_buffer("panels").dtype == torch.uint8


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_layer_in_8_bits_is_nearly_what_it_was(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(260, 50, dtype=dtype).requires_grad_(False)
    rows = torch.randn(2, 7, 260, dtype=dtype)
    packed = PackedLinear(layer.weight, layer.bias, ops.choose("cpu"), "int8")
    result, exact = packed(rows), layer(rows)
    assert (result.dtype, result.shape) == (dtype, exact.shape)
    assert (result - exact).float().std() < 0.012 * exact.float().std()
