"""How each tool writes a weight: tensors under its names, and what they stand for, in floats.

Codes, zero points and scales are chosen first. What they stand for is computed from these by the
formula of the format, and how they lie in the file is written down place by place, in numpy: so
nothing here shares a line with the engine's way back.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tensors = dict[str, Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True)
class Codes:
    """(code - zero) * scale, all of integers but the scales; `groups` is of each input."""

    codes: np.ndarray[Any, Any]  # [outputs, inputs]
    zeros: np.ndarray[Any, Any]  # [outputs, groups]
    scales: Tensor  # [outputs, groups]
    groups: np.ndarray[Any, Any]  # [inputs]

    def floats(self) -> Tensor:
        zeros = torch.from_numpy(self.zeros[:, self.groups].astype(np.float32))
        scales = self.scales.float()[:, torch.from_numpy(self.groups)]
        return (torch.from_numpy(self.codes.astype(np.float32)) - zeros) * scales


def quantize(
    weight: Tensor,
    bits: int,
    group: int | None,
    *,
    is_symmetric: bool = False,
    dtype: torch.dtype = torch.float16,
    shuffled: bool = False,
) -> Codes:
    """Codes near a weight [outputs, inputs], with zeros of all sizes unless `is_symmetric`."""
    num_outputs, num_inputs = weight.shape
    group = group or num_inputs
    groups = np.arange(num_inputs) // group
    if shuffled:
        groups = groups[np.random.default_rng(0).permutation(num_inputs)]
    most, middle = (1 << bits) - 1, 1 << (bits - 1)
    codes = np.empty((num_outputs, num_inputs), np.int64)
    zeros = np.empty((num_outputs, groups.max() + 1), np.int64)
    scales = torch.empty(zeros.shape, dtype=dtype)
    for number in range(groups.max() + 1):
        inputs = np.flatnonzero(groups == number)
        part = weight[:, torch.from_numpy(inputs)].float()
        if is_symmetric:
            scale = part.abs().amax(1) / (middle - 1)
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale = (high - low) / most
        scales[:, number] = scale.to(dtype)
        scale = scales[:, number].float()
        zero = torch.full_like(scale, middle) if is_symmetric else (-low / scale).round()
        zeros[:, number] = zero.clamp(0, most).numpy()
        found = (part / scale[:, None]).round().numpy() + zeros[:, number, None]
        codes[:, inputs] = found.clip(0, most)
    return Codes(codes, zeros, scales, groups)


def pack(numbers: np.ndarray[Any, Any], bits: int, order: list[int] | None = None) -> Tensor:
    """[rows, n] → int32 [rows, n / in_word]: place i of a word has the number `order[i]` of it."""
    in_word = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % in_word))).astype(np.uint32)
    words = np.zeros((len(padded), padded.shape[1] // in_word), np.uint32)
    for column in range(words.shape[1]):
        for place, index in enumerate(order or range(in_word)):
            words[:, column] |= padded[:, column * in_word + index] << np.uint32(place * bits)
    return torch.from_numpy(words.view(np.int32))


Writer = Callable[[str, Tensor], tuple[Tensors, Tensor]]


def awq(group: int | None) -> Writer:
    """AutoAWQ's `gemm`."""

    def write(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        found = quantize(weight, 4, group)
        tensors = {
            f"{stem}.qweight": pack(found.codes.T, 4, AWQ_ORDER),
            f"{stem}.qzeros": pack(found.zeros.T, 4, AWQ_ORDER),
            f"{stem}.scales": found.scales.T.contiguous(),
        }
        return tensors, found.floats()

    return write


def gptq(bits: int, group: int | None, *, version: int = 1, **how: Any) -> Writer:
    """AutoGPTQ's and GPTQModel's: of version 1, zero points are one less, word by word."""

    def write(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        found = quantize(weight, bits, group, **how)
        zeros = pack(found.zeros.T, bits)
        if version == 1:
            one = sum(1 << (place * bits) for place in range(32 // bits))
            words = zeros.numpy().view(np.uint32) - np.uint32(one)
            zeros = torch.from_numpy(words.view(np.int32))
        tensors = {
            f"{stem}.qweight": pack(found.codes, bits).T.contiguous(),
            f"{stem}.qzeros": zeros,
            f"{stem}.scales": found.scales.T.contiguous(),
            f"{stem}.g_idx": torch.from_numpy(found.groups.astype(np.int32)),
        }
        return tensors, found.floats()

    return write


def with_zero_biases(write: Writer) -> Writer:
    """As AutoGPTQ writes: a bias for every layer."""

    def write_both(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        tensors, floats = write(stem, weight)
        return tensors | {f"{stem}.bias": torch.zeros(len(weight), dtype=torch.float16)}, floats

    return write_both


def packed(bits: int, group: int | None, **how: Any) -> Writer:
    """compressed-tensors' pack-quantized: numbers and zero points are moved up by half."""

    def write(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        found = quantize(weight, bits, group, dtype=torch.bfloat16, **how)
        tensors = {
            f"{stem}.weight_packed": pack(found.codes, bits),
            f"{stem}.weight_scale": found.scales,
            f"{stem}.weight_shape": torch.tensor(weight.shape),
        }
        if not how.get("is_symmetric"):
            tensors[f"{stem}.weight_zero_point"] = pack(found.zeros.T, bits).T.contiguous()
        if how.get("shuffled"):
            tensors[f"{stem}.weight_g_idx"] = torch.from_numpy(found.groups.astype(np.int32))
        return tensors, found.floats()

    return write


def whole(**how: Any) -> Writer:
    """compressed-tensors' int-quantized, a scale for each output."""

    def write(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        found = quantize(weight, 8, None, dtype=torch.bfloat16, **how)
        tensors = {
            f"{stem}.weight": torch.from_numpy((found.codes - 128).astype(np.int8)),
            f"{stem}.weight_scale": found.scales,
            f"{stem}.input_scale": torch.tensor([0.5]),
        }
        if not how.get("is_symmetric"):
            zeros = torch.from_numpy((found.zeros - 128).astype(np.int8))
            tensors[f"{stem}.weight_zero_point"] = zeros
        return tensors, found.floats()

    return write


def fp8(name: str, block: tuple[int, int] | None, **others: Tensor) -> Writer:
    """E4M3 with scales of blocks, of outputs (block (1, 0)), or one; `others` are beside them."""

    def write(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        num_outputs, num_inputs = weight.shape
        rows, columns = block or (num_outputs, num_inputs)
        columns = columns or num_inputs
        shape = (-(-num_outputs // rows), -(-num_inputs // columns))
        scales, floats = torch.empty(shape), torch.empty_like(weight)
        codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        for row in range(shape[0]):
            for column in range(shape[1]):
                place = (
                    slice(row * rows, (row + 1) * rows),
                    slice(column * columns, (column + 1) * columns),
                )
                scales[row, column] = weight[place].abs().max() / 448
                codes[place] = (weight[place] / scales[row, column]).to(torch.float8_e4m3fn)
                floats[place] = codes[place].float() * scales[row, column]
        tensors = {f"{stem}.weight": codes, f"{stem}.{name}": scales if block else scales[0, 0]}
        return tensors | {f"{stem}.{name}": other for name, other in others.items()}, floats

    return write


def of_table(*, is_nested: bool) -> Writer:
    """bitsandbytes' nf4 in blocks of 64, whose scales are codes themselves if `is_nested`."""
    table = torch.tensor(NF4)

    def write(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
        blocks = weight.reshape(-1, 64)
        scales = blocks.abs().amax(1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16"}
        state |= {"shape": list(weight.shape)}
        name, tensors = f"{stem}.weight", {}
        if is_nested:
            offset, inner = float(scales.mean()), torch.linspace(-1, 1, 256)
            parts = torch.split(scales - offset, 256)
            outer = torch.stack([part.abs().max() for part in parts])
            found = [
                (part[:, None] / most - inner).abs().argmin(1)
                for part, most in zip(parts, outer, strict=True)
            ]
            stored = torch.cat(found)
            scales = torch.cat(
                [inner[part] * most for part, most in zip(found, outer, strict=True)]
            )
            scales = scales + offset
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            tensors = {f"{name}.nested_absmax": outer, f"{name}.nested_quant_map": inner}
            tensors[f"{name}.absmax"] = stored.to(torch.uint8)
        else:
            tensors[f"{name}.absmax"] = scales
        codes = (blocks[..., None] / scales[:, None, None] - table).abs().argmin(-1)
        flat = codes.flatten().to(torch.uint8)
        tensors |= {
            name: (flat[0::2] << 4 | flat[1::2])[:, None],
            f"{name}.quant_map": table,
            f"{name}.quant_state.bitsandbytes__nf4": torch.frombuffer(
                bytearray(json.dumps(state).encode()), dtype=torch.uint8
            ),
        }
        return tensors, (table[codes] * scales[:, None]).view(weight.shape)

    return write


def bnb_int8(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """bitsandbytes' `LLM.int8()`."""
    largest = weight.abs().amax(1)
    codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
    tensors = {
        f"{stem}.weight": codes,
        f"{stem}.SCB": largest,
        f"{stem}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, codes.float() * largest[:, None] / 127


def mxfp4(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """gpt-oss' experts, [experts, inputs, outputs], which lie as [experts, outputs, blocks, 16]."""
    num_experts, num_inputs, num_outputs = weight.shape
    blocks = weight.transpose(1, 2).reshape(num_experts, num_outputs, num_inputs // 32, 32)
    exponents = (blocks.abs().amax(-1) / 6).log2().ceil()
    table = torch.tensor(E2M1)
    scaled = blocks / exponents.exp2()[..., None]
    codes = (scaled[..., None] - table).abs().argmin(-1).to(torch.uint8)
    tensors = {
        f"{name}_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        f"{name}_scales": (exponents + 127).to(torch.uint8),
    }
    floats = (table[codes.long()] * exponents.exp2()[..., None]).flatten(2).transpose(1, 2)
    return tensors, floats.contiguous()
