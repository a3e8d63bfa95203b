"""The memory of the KV cache, laid out as csrc reads it."""

import torch
from torch import Tensor

from engine.core.tensors import huge_pages

CPU = torch.device("cpu")


def allocate_cache(
    num_blocks: int,
    block_size: int,
    num_heads: int,
    width: int,
    dtype: torch.dtype,
    is_key: bool,
    device: torch.device = CPU,
) -> Tensor:  # [num_blocks, block_size, num_heads, width]
    """Zeros as csrc/cpu/ops.h reads them: keys by token last, values by width last.

    On a GPU both lie as their shape says.
    """
    if device.type != "cpu":
        return torch.zeros(num_blocks, block_size, num_heads, width, dtype=dtype, device=device)
    inner = (width, block_size) if is_key else (block_size, width)
    cache = huge_pages.zeros((num_blocks, num_heads, *inner), dtype)
    return cache.permute(0, 3, 1, 2) if is_key else cache.transpose(1, 2)


def stack_layers(cache: Tensor, num_layers: int) -> Tensor:
    """[layers * blocks, ...] → [layers, blocks, ...]: the caches of all layers in one memory."""
    num_blocks = cache.shape[0] // num_layers
    strides = (num_blocks * cache.stride(0), *cache.stride())
    return cache.as_strided((num_layers, num_blocks, *cache.shape[1:]), strides)
