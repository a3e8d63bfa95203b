"""Packed weights hold what they were given, in the order in which csrc reads them."""

import pytest
import torch

from engine.fused.packing import GROUP_INPUTS, PackedWeight, join_gate_up, quantize


@pytest.mark.parametrize("num_inputs", [16, 200])
@pytest.mark.parametrize("num_outputs", [1, 16, 33])
@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_packing_loses_nothing_and_pads_with_zeros(
    format: str, num_outputs: int, num_inputs: int
) -> None:
    weights = torch.randn(2, num_outputs, num_inputs).bfloat16().float()
    packed = PackedWeight.allocate(2, num_outputs, num_inputs, format)
    for layer, weight in enumerate(weights):
        packed.fill(layer, weight)
    for layer, weight in enumerate(weights):
        unpacked = packed.unpack(layer)
        assert torch.equal(unpacked[:num_outputs, :num_inputs], weight)
        assert not unpacked[num_outputs:].any()
        assert not unpacked[:, num_inputs:].any()


@pytest.mark.parametrize(("format", "interleaved"), [("float32", 1), ("bfloat16", 2), ("int8", 4)])
def test_inputs_that_are_multiplied_together_lie_together(format: str, interleaved: int) -> None:
    packed = PackedWeight.allocate(1, 32, 24, format)
    packed.fill(0, torch.arange(32 * 24).view(32, 24) % 100 - 50.0)
    assert packed.panels.shape == (1, 2, 24 // interleaved, 16, interleaved)
    panel, step, output = 1, 3, 5
    first = step * interleaved
    expected = packed.unpack(0)[16 * panel + output, first : first + interleaved]
    stored = packed.panels[0, panel, step, output].float()
    if packed.scales is not None:
        stored = (stored - 128) * packed.scales[0, panel, 0, output]
    assert torch.equal(stored, expected)


def test_an_int8_weight_is_off_by_half_a_step_of_its_group_at_most() -> None:
    weight = torch.randn(20, 300) * torch.logspace(-6, 6, 20).unsqueeze(1)
    weight[3] = 0
    packed = PackedWeight.allocate(1, 20, 300, "int8")
    packed.fill(0, weight)
    difference = (packed.unpack(0)[:20, :300] - weight).abs()
    for begin in range(0, 300, GROUP_INPUTS):
        group = slice(begin, begin + GROUP_INPUTS)
        half_step = weight[:, group].abs().amax(1, keepdim=True) / 254
        assert (difference[:, group] <= half_step * 1.0001).all()


def test_stored_numbers_are_symmetric_around_their_zero() -> None:
    stored, scales = quantize(torch.tensor([[-2.0, 0.0, 1.0, 2.0]]))
    assert stored.tolist() == [[1, 128, 192, 255]]
    assert scales.tolist() == [[pytest.approx(2 / 127)]]


def test_panels_of_gate_and_up_take_turns() -> None:
    gate, up = torch.randn(2, 20, 8)
    joined = join_gate_up(gate, up).view(2, 2, 16, 8)  # pairs, gate and up, outputs, inputs
    assert torch.equal(joined[:, 0].flatten(0, 1)[:20], gate)
    assert torch.equal(joined[:, 1].flatten(0, 1)[:20], up)
