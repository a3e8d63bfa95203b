"""What the fused decoders of CPUs and GPUs know of a model, and take from it alike."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.core.models.fused.support import head_dim, unknown_parameters, windows


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a model. All lengths are numbers of elements."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float  # of the norms
    scale: float  # of the scores
    windows: tuple[int, ...]  # of each layer, 0 = all
    cache_dtype: torch.dtype  # float32, bfloat16 or int8; the weights' precision is another thing


def read_shape(model: Any, cache_dtype: torch.dtype) -> DecoderShape:
    """Of a loaded transformers model.

    Raises ValueError if a layer has other parameters than those that are computed.
    """
    config, layers = model.config, model.model.layers
    for index, layer in enumerate(layers):
        if unknown := unknown_parameters(layer):
            raise ValueError(f"layer {index} has {min(unknown)}, or lacks it")
    return DecoderShape(
        num_layers=len(layers),
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim(config),
        vocab_size=config.vocab_size,
        epsilon=config.rms_norm_eps,
        scale=layers[0].self_attn.scaling,
        windows=windows(config),
        cache_dtype=cache_dtype,
    )


def drop_weights(module: nn.Module) -> None:
    """Leave only shapes. The smallest weight that stays would keep its whole file mapped."""
    for child in module.modules():
        for name, weight in list(child.named_parameters(recurse=False)):
            setattr(child, name, nn.Parameter(weight.to("meta"), requires_grad=False))


def rotary_table(module: nn.Module, num_positions: int, device: torch.device) -> Tensor:
    """Cosines and sines of every position: [positions, 2, head_dim / 2] float32.

    `module` is transformers', which gives them for positions.
    """
    positions = torch.arange(num_positions, device=device)[None]
    cosines, sines = module(torch.empty(0, device=device), positions)
    half = cosines.shape[-1] // 2
    return torch.stack([cosines[0, :, :half], sines[0, :, :half]], dim=1).float().contiguous()
