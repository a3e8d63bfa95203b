"""Codes of 4 and of 6 bits in int32 words, as csrc's `product.h` describes them."""

import torch
from torch import Tensor

LOW = 15


def four_bits_to_words(codes: Tensor) -> Tensor:
    """[..., 8] uint8 → [..., 1] int32: of each byte the low half, then the high halves."""
    return (codes[..., :4] | codes[..., 4:] << 4).contiguous().view(torch.int32)


def four_bits_of_words(words: Tensor) -> Tensor:
    """[..., 1] int32 → [..., 8] uint8."""
    stored = words.view(torch.uint8)
    return torch.cat([stored & LOW, stored >> 4], dim=-1)


def six_bits_to_words(codes: Tensor) -> Tensor:
    """[..., outputs, 16] uint8 → [..., 3, outputs] int32: low bits of 8, of 8, high bits of all."""
    low, high = codes & LOW, codes >> 4
    bits = high[..., :4] | high[..., 4:8] << 2 | high[..., 8:12] << 4 | high[..., 12:] << 6
    of_output = [four_bits_to_words(low[..., :8]), four_bits_to_words(low[..., 8:])]
    of_output.append(bits.contiguous().view(torch.int32))
    return torch.cat(of_output, dim=-1).transpose(-1, -2)


def six_bits_of_words(words: Tensor) -> Tensor:
    """[..., 3, outputs] int32 → [..., outputs, 16] uint8."""
    first, second, bits = (each.contiguous()[..., None] for each in words.unbind(-2))
    low = torch.cat([four_bits_of_words(first), four_bits_of_words(second)], dim=-1)
    packed = bits.view(torch.uint8)
    high = torch.cat([packed >> place & 3 for place in (0, 2, 4, 6)], dim=-1)
    return low | high << 4
