"""Codes stand for what their format's formula says, at the ends of what it can say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.core.models.quantized.floats import read_floats
from engine.core.models.quantized.numbers import matrices, number_kind, read_numbers
from engine.core.ops.numbers import NumberKind
from engine.folder.quantized.layouts import QuantizedTensor
from engine.folder.quantized.methods import find_quantized
from engine.folder.weight_headers import read_headers
from tests.engine.helpers.published.floats import floats_of
from tests.engine.helpers.published.formats import FORMATS, Published
from tests.engine.helpers.published.writers import Codes, Tensors, gptq, mxfp4, pack

NUM_OUTPUTS, NUM_INPUTS = 24, 64


def found(tensors: Tensors, config: object, folder: Path) -> QuantizedTensor:
    """The one quantized tensor among these."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})
    quantization = find_quantized(folder, {"quantization_config": config}, read_headers(folder))
    assert quantization is not None
    (tensor,) = (
        each for each in quantization.tensors.values() if isinstance(each, QuantizedTensor)
    )
    return tensor


def codes_of(bits: int, group: int, zeros: list[int], scale: float = 0.01) -> Codes:
    random = np.random.default_rng(0)
    shape = (NUM_OUTPUTS, -(-NUM_INPUTS // group))
    return Codes(
        random.integers(0, 1 << bits, (NUM_OUTPUTS, NUM_INPUTS)),
        np.resize(zeros, shape),
        (torch.rand(shape) * scale + scale).half(),
        np.arange(NUM_INPUTS) // group,
    )


def write_gptq(codes: Codes, bits: int, version: int) -> Tensors:
    zeros = pack(codes.zeros.T, bits)
    if version == 1:
        one = sum(1 << (place * bits) for place in range(32 // bits))
        zeros = torch.from_numpy((zeros.numpy().view(np.uint32) - np.uint32(one)).view(np.int32))
    return {"a.qweight": pack(codes.codes, bits).T, "a.qzeros": zeros, "a.scales": codes.scales.T}


def gptq_config(bits: int, group: int, version: int) -> dict[str, object]:
    name = "gptq" if version == 1 else "gptq_v2"
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "checkpoint_format": name,
    }


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_at_the_ends_lose_nothing_to_the_one_that_is_taken_off(
    bits: int, version: int, tmp_path: Path
) -> None:
    codes = codes_of(bits, 32, [0, 1, (1 << bits) - 1, 7, 0])
    tensors = write_gptq(codes, bits, version)
    tensor = found(tensors, gptq_config(bits, 32, version), tmp_path)
    assert torch.equal(read_floats(tensor, torch.float32), codes.floats())


@pytest.mark.parametrize(
    ("group", "scale", "part_inputs"),
    [
        (32, 0.01, 32),
        (64, 0.01, 32),
        (128, 0.01, 32),  # more than there are
        (16, 0.01, 16),
        (48, 0.01, 16),
        (8, 0.01, None),
        (20, 0.01, None),
        (32, 1e-7, None),  # float16 has two or three of such
    ],
)
def test_parts_are_packed_if_kernels_have_such_and_float16_has_their_scales(
    group: int, scale: float, part_inputs: int | None, tmp_path: Path
) -> None:
    codes = codes_of(4, group, [0, 8, 15], scale)
    tensors = write_gptq(codes, 4, 2)
    tensors["a.scales"] = tensors["a.scales"].float() * 1.01
    tensor = found(tensors, gptq_config(4, group, 2), tmp_path)
    kind = number_kind(tensor)
    assert (kind and kind.part_inputs) == part_inputs
    if kind is None:
        return
    packed = floats_of(read_numbers(tensor, kind.part_inputs))
    expected = read_floats(tensor, torch.float32)
    assert (packed - expected).abs().max() < 2e-3 * expected.abs().max()


@pytest.mark.parametrize(("zeros", "has_least"), [([8], False), ([8, 8, 7], True)])
def test_zero_points_in_the_middle_of_the_codes_take_no_least_numbers(
    zeros: list[int], has_least: bool, tmp_path: Path
) -> None:
    tensors = write_gptq(codes_of(4, 32, zeros), 4, 2)
    tensor = found(tensors, gptq_config(4, 32, 2), tmp_path)
    kind = number_kind(tensor)
    assert kind == NumberKind(4, 32, has_least)
    packed = floats_of(read_numbers(tensor, 32))
    expected = read_floats(tensor, torch.float32)
    assert (packed - expected).abs().max() < 2e-3 * expected.abs().max()


def test_order_of_inputs_is_that_of_the_model(tmp_path: Path) -> None:
    weight = torch.randn(NUM_OUTPUTS, NUM_INPUTS)
    tensors, expected = gptq(4, 32, shuffled=True)("a", weight)
    tensor = found(tensors, gptq_config(4, 32, 1), tmp_path)
    assert number_kind(tensor) is None
    assert torch.equal(read_floats(tensor, torch.float32), expected)


def test_powers_of_two_of_mxfp4_are_exact(tmp_path: Path) -> None:
    tensors, _ = mxfp4("a", torch.randn(2, NUM_INPUTS, 254))
    exponents = torch.arange(254).repeat(2, 2, 1).transpose(1, 2)
    tensors["a_scales"] = exponents.to(torch.uint8)
    tensor = found(tensors, {"quant_method": "mxfp4"}, tmp_path)
    read = read_floats(tensor, torch.float32)
    one = read_floats(
        found(
            {**tensors, "a_scales": torch.full_like(tensors["a_scales"], 127)},
            {"quant_method": "mxfp4"},
            tmp_path,
        ),
        torch.float32,
    )
    powers = np.ldexp(np.ones(254), np.arange(254) - 127)
    expected = (one.double() * torch.from_numpy(powers)).float()
    assert torch.equal(read, expected)


def test_scales_of_fp8_may_be_powers_of_two(tmp_path: Path) -> None:
    weight = torch.randn(NUM_OUTPUTS, NUM_INPUTS).to(torch.float8_e4m3fn)
    scales = torch.tensor([[0.5], [2.0], [1.0]])
    config = {"quant_method": "fp8", "weight_block_size": [8, 64]}
    tensors = {"a.weight": weight, "a.weight_scale_inv": scales.to(torch.float8_e8m0fnu)}
    tensor = found(tensors, config, tmp_path)
    expected = weight.float() * scales.repeat_interleave(8, 0)
    assert torch.equal(read_floats(tensor, torch.float32), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_slabs_make_no_difference(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: Published = FORMATS[name]
    shape = (2, 64, 32) if name == "mxfp4" else (NUM_OUTPUTS, NUM_INPUTS)
    tensors, _ = published.write("a", torch.randn(shape))
    config = published.config
    if published.file != "config.json":
        config = {"quant_method": "modelopt", **config}
    tensor = found(tensors, config, tmp_path)
    whole = read_floats(tensor, torch.float32)
    for module in ("integers", "floats"):
        monkeypatch.setattr(f"engine.core.models.quantized.{module}.SLAB_WEIGHTS", 300)
    assert torch.equal(read_floats(tensor, torch.float32), whole)
    assert torch.equal(read_floats(tensor, torch.bfloat16), whole.bfloat16())


def test_experts_are_packed_unless_float16_lacks_their_powers_of_two(tmp_path: Path) -> None:
    tensors, meant = mxfp4("a", torch.randn(2, NUM_INPUTS, NUM_OUTPUTS))
    tensors["a_blocks"][0, 0, 0] = 0x80  # zeros, one of them below
    tensors["a_scales"][0, 0, 0] = 0
    tensors["a_scales"][1, 3, 1] = 103  # 2 ** -24 of the half
    first, second = matrices(found(tensors, {"quant_method": "mxfp4"}, tmp_path))
    assert number_kind(first) == NumberKind(6, 32, has_least=False)
    assert number_kind(second) is None
    meant[0, :32, 0] = 0
    assert torch.equal(floats_of(read_numbers(first, 32)), meant[0].T)
    tensors["a_scales"][1, 3, 1] = 144
    _, second = matrices(found(tensors, {"quant_method": "mxfp4"}, tmp_path))
    assert number_kind(second) is None
