"""Packed linear layers stand in for torch's, and for nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.core.models.modules.linear import PackedLinear, pack_layers, pack_linear
from engine.core.ops import library as ops
from tests.helpers.built_kernels import needs_kernels


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


def test_a_packed_weight_has_shape_type_and_device_and_no_memory_until_it_is_read() -> None:
    layer = pack_linear(torch.randn(20, 6), None, ops.REFERENCE, dtype=torch.bfloat16)
    weight = layer.weight
    assert (weight.shape, weight.size(0), weight.ndim, len(weight)) == ((20, 6), 20, 2, 20)
    assert (weight.dtype, weight.device.type, weight.numel()) == (torch.bfloat16, "cpu", 120)
    assert layer._unpacked is None
    assert layer.get_buffer("panels").shape == (2, 6, 16, 1)


READERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": functional.linear,
    "matmul": lambda rows, weight: rows @ weight.T,
    "t": lambda rows, weight: rows @ weight.t(),
    "transposed data": lambda rows, weight: rows @ weight.data.mT,
    "einsum": lambda rows, weight: torch.einsum("oi,bi->bo", weight, rows),
    "converted": lambda rows, weight: functional.linear(rows.double(), weight.double()).float(),
    "cut": lambda rows, weight: functional.linear(rows, torch.cat([weight[:7], weight[7:]])),
    "copied": lambda rows, weight: functional.linear(rows, weight.detach().clone()),
    "as numbers": lambda rows, weight: rows @ torch.tensor(weight.tolist()).T,
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("reader", READERS)
def test_who_reads_the_weight_of_a_packed_layer_gets_its_numbers(reader: str, mode: Any) -> None:
    """Routers compute with the weight of a layer themselves; a meta tensor gives them anything."""
    torch.manual_seed(0)
    weight, rows = torch.randn(20, 64), torch.randn(3, 64)
    layer = pack_linear(weight, None, ops.REFERENCE)
    with mode():
        for _ in range(2):
            result = READERS[reader](rows, layer.weight)
            torch.testing.assert_close(result, rows @ weight.T)
            assert type(result) is Tensor


def test_who_reads_a_weight_in_8_bits_gets_what_the_layer_computes_with() -> None:
    torch.manual_seed(0)
    weight = torch.randn(20, 260)
    layer = pack_linear(weight, None, ops.REFERENCE, "int8")
    read = functional.linear(torch.eye(260), layer.weight).T
    assert 0 < (read - weight).abs().max() < 0.02


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
    packed = pack_linear(layer.weight, layer.bias, ops.choose("cpu"), "int8")
    result, exact = packed(rows), layer(rows)
    assert (result.dtype, result.shape) == (dtype, exact.shape)
    assert (result - exact).float().std() < 0.012 * exact.float().std()
