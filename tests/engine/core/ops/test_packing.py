"""Packed weights hold what they were given, in the order in which csrc reads them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.core.ops import four_bits, packing
from engine.core.ops.numbers import Numbers
from engine.core.ops.packing import GROUP_INPUTS, PackedWeight, join_gate_up, quantize


# torch gives this class no types, neither to inherit nor to call.
class LargestCopy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many bytes the largest tensor has that any operation made; views are none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_memory(one) for one in args if isinstance(one, Tensor)}
        if isinstance(result, Tensor) and _memory(result) not in given:
            self.num_bytes = max(self.num_bytes, result.nbytes)
        return result


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


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


def test_eight_inputs_of_four_bits_lie_in_four_bytes_the_first_four_in_the_low_halves() -> None:
    packed = PackedWeight.allocate(1, 32, 24, "int4_parts")
    assert (packed.format, packed.num_inputs) == ("int4_parts", 24)
    numbers = ((torch.arange(32)[:, None] + torch.arange(24) * 7) % 16).to(torch.uint8)
    packed.fill_numbers(0, Numbers(numbers, torch.ones((32, 1)).half(), None, 4, 32))
    assert packed.panels.shape == (1, 2, 3, 16, 1)
    panel, step, output = 1, 2, 5
    stored = packed.panels[0, panel, step, output].view(torch.uint8)
    expected = numbers[16 * panel + output, 8 * step : 8 * step + 8]
    assert torch.equal(torch.cat([stored & 15, stored >> 4]), expected)
    assert torch.equal(packed.unpack(0)[:, :24], numbers - 8.0)


def test_sixteen_inputs_of_int6_lie_in_three_lines_the_high_bits_in_the_last() -> None:
    codes = ((torch.arange(32)[:, None] + torch.arange(48) * 7) % 64).to(torch.uint8)
    scales = torch.ones((32, 2), dtype=torch.float16)
    packed = PackedWeight.allocate(1, 32, 48, "int6")
    packed.fill_numbers(0, Numbers(codes, scales, None, 6, 32))
    assert (packed.format, packed.num_inputs) == ("int6", 48)
    assert packed.panels.shape == (1, 2, 3, 3, 16)
    panel, step, output = 1, 2, 5
    first, second, high = packed.panels[0, panel, step].view(torch.uint8).view(3, 16, 4)[:, output]
    expected = codes[16 * panel + output, 16 * step :]
    low = torch.cat([first & 15, first >> 4, second & 15, second >> 4])
    assert torch.equal(low, expected & 15)
    for place in range(4):
        of_four = expected[4 * place : 4 * place + 4]
        assert torch.equal(high >> 2 * place & 3, of_four >> 4)
    assert torch.equal(packed.unpack(0), codes.float() - 32)


def test_a_line_of_int4_names_the_pairs_of_an_outputs_eight_parts_before_sixteen_scales() -> None:
    weight = torch.randn(20, 300)
    given = four_bits.quantize(weight)
    assert [tuple(each.shape) for each in given] == [(20, 300), (20, 3, 8), (20, 3)]
    packed = PackedWeight.allocate(1, 20, 304, "int4")
    assert packed.scales is not None
    assert (packed.format, packed.num_inputs) == ("int4", 304)
    packed.fill(0, torch.nn.functional.pad(weight, (0, 4)))
    assert packed.panels.shape == (1, 2, 38, 16, 1)
    assert packed.scales.shape == (1, 2, 3, 24)
    panel, group, output = 1, 2, 3
    line = packed.scales[0, panel, group]
    stored = line[output : output + 1].view(torch.uint8)
    assert torch.equal(torch.cat([stored & 15, stored >> 4]), given.pairs[19, group])
    assert line[16:].view(torch.float16)[output] == given.scales[19, group]
    numbers = four_bits.whole_numbers(given.codes, given.pairs.flatten(1))
    expected = numbers * given.scales.float().repeat_interleave(128, 1)[:, :300]
    assert torch.equal(packed.unpack(0)[:20, :300], expected)


def test_an_int4_weight_that_can_be_kept_as_it_is_nearly_is() -> None:
    """Its parts reach as far as they can, down or up."""
    steps = torch.tensor(four_bits.STEPS).view(2, 8)[:, [3, 7] * 4].flatten()
    zeros = torch.tensor(four_bits.ZEROS).view(2, 8)[:, [3, 7] * 4].flatten()
    codes = torch.arange(16).repeat(20, 16, 1)
    weight = ((codes - zeros[:, None]) * steps[:, None]).flatten(1) * torch.rand(20, 1)
    weight[3] = 0
    packed = PackedWeight.allocate(1, 20, 256, "int4")
    packed.fill(0, weight)
    difference = (packed.unpack(0)[:20] - weight).square().mean() / weight.square().mean()
    assert difference.sqrt() < 0.05
    assert not packed.unpack(0)[3].any()


@pytest.mark.parametrize("outliers", [1, 8])
def test_an_int4_weight_is_rounded_less_than_one_of_a_scale_for_32_inputs(outliers: int) -> None:
    """As GGUF's Q4_0 has them; also where the largest of 128 inputs are few."""
    torch.manual_seed(0)
    weight = torch.randn(20, 304) * torch.logspace(-3, 4, 20).unsqueeze(1)
    weight[:, ::100] *= outliers
    packed = PackedWeight.allocate(1, 20, 304, "int4")
    packed.fill(0, weight)
    parts = torch.nn.functional.pad(weight, (0, 16)).view(20, 10, 32)
    scales = parts.gather(-1, parts.abs().argmax(-1, keepdim=True)) / -8
    plain = ((parts / scales).round().clamp(-8, 7) * scales).flatten(1)[:, :304]
    ours, theirs = (
        (each - weight).square().sum(1) for each in (packed.unpack(0)[:20, :304], plain)
    )
    assert (ours < 0.95 * theirs).all()
    assert (ours / theirs).mean() < 0.8


@pytest.mark.parametrize("format", ["bfloat16", "int8", "int4"])
def test_a_weight_that_lies_the_other_way_is_packed_alike(format: str) -> None:
    """As those of GPT-2 do."""
    weight = torch.randn(256, 40)
    ours, other = (PackedWeight.allocate(1, 40, 256, format) for _ in range(2))
    ours.fill(0, weight.T.contiguous())
    other.fill(0, weight.T)
    assert torch.equal(ours.unpack(0), other.unpack(0))


def test_what_steps_and_zeros_make_of_codes_fits_into_a_byte() -> None:
    for step, zero in zip(four_bits.STEPS, four_bits.ZEROS, strict=True):
        assert -128 <= -zero * step < (four_bits.MOST - zero) * step <= 127
        assert four_bits.MOST * step < 256  # nothing is carried from one code to the next


def test_weights_beyond_float16_are_kept_finite() -> None:
    packed = PackedWeight.allocate(1, 16, 32, "int4")
    packed.fill(0, torch.full((16, 32), 1e30))
    assert packed.unpack(0).isfinite().all()


def test_stored_numbers_are_symmetric_around_their_zero() -> None:
    stored, scales = quantize(torch.tensor([[-2.0, 0.0, 1.0, 2.0]]))
    assert stored.tolist() == [[1, 128, 192, 255]]
    assert scales.tolist() == [[pytest.approx(2 / 127)]]


def test_panels_of_gate_and_up_take_turns() -> None:
    gate, up = torch.randn(2, 20, 8)
    joined = join_gate_up(gate, up).view(2, 2, 16, 8)  # pairs, gate and up, outputs, inputs
    assert torch.equal(joined[:, 0].flatten(0, 1)[:20], gate)
    assert torch.equal(joined[:, 1].flatten(0, 1)[:20], up)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8", "int4"])
def test_a_weight_is_packed_alike_in_slabs_and_whole(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(100, 200)  # seven panels, the last with padding
    whole, slabs = (PackedWeight.allocate(1, 100, 200, format) for _ in range(2))
    whole.fill(0, weight)
    monkeypatch.setattr(packing, "SLAB_WEIGHTS", 3 * 16 * 200)
    slabs.fill(0, weight)
    assert torch.equal(slabs.panels, whole.panels)
    if slabs.scales is not None and whole.scales is not None:
        assert torch.equal(slabs.scales, whole.scales)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8", "int4"])
def test_packing_copies_no_more_than_a_slab_at_once(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SLAB_WEIGHTS", 2 * 16 * 256)
    packed = PackedWeight.allocate(1, 320, 256, format)
    weight = torch.zeros(320, 256, dtype=torch.bfloat16)
    with LargestCopy() as copies:
        packed.fill(0, weight)
    assert 0 < copies.num_bytes <= 2 * 16 * 256 * torch.float32.itemsize
