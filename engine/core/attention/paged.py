"""Paged attention for any transformers model: the function that its attention modules call.

transformers looks the name of `attn_implementation` up in a registry and calls what it finds with
queries, keys and values after their rotation. Ours writes keys and values into the layer's blocks
and reads them back by block table, so causality, windows and packing are ours as well: there is no
mask. A layer finds its cache, and the batch of this step, on an attribute of the calling module.

A model that does not call the function would give plausible, wrong text; so
engine/core/models/modules/trial.py first runs a few tokens while each layer only notes what it is
asked, and refuses the model unless every layer was called exactly once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from engine.core.attention.backends import AttentionBackend
from engine.core.attention.scores import Scores
from engine.core.ops.library import Ops
from engine.core.tensors.batch import Batch
from engine.errors import UnsupportedModelError

NAME = "parley_paged"
LAYER_ATTRIBUTE = "parley_layer"


@dataclass(slots=True)
class StepContext:
    """What all layers share: the ops, and the batch of the step in progress (None: probing).

    `attention` is chosen when it is known what the layers ask for. A step's rows are padded to a
    multiple of `row_multiple` (engine/core/runner/invariance.py).
    """

    ops: Ops
    attention: AttentionBackend | None = None
    batch: Batch | None = None
    row_multiple: int = 1


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer asked for when it was probed; its cache is made to this measure."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    dtype: torch.dtype
    sliding_window: int
    softcap: float
    has_sinks: bool


@dataclass(slots=True)
class PagedLayer:
    """One attention layer's cache. Found by the attention function on the module that calls it."""

    context: StepContext
    shapes: list[LayerShape] = field(default_factory=list)  # one per call while probing
    key_cache: Tensor | None = None  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor | None = None  # [num_blocks, block_size, num_kv_heads, value_head_dim]

    @property
    def caches(self) -> list[Tensor]:
        """Its memory, as far as there is some."""
        return [cache for cache in (self.key_cache, self.value_cache) if cache is not None]


def paged_attention_forward(
    module: nn.Module,
    query: Tensor,  # [1, num_heads, num_rows, head_dim]
    key: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
    value: Tensor,  # [1, num_kv_heads, num_rows, value_head_dim]
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # [num_heads], attention sinks
    is_causal: bool | None = None,
    position_ids: Tensor | None = None,
    use_cache: bool | None = None,
    output_attentions: bool | None = None,
    output_hidden_states: bool | None = None,
    output_router_logits: bool | None = None,
    logits_to_keep: int | Tensor = 0,  # of the output layer; some models pass it to every layer
    **others: Any,
) -> tuple[Tensor, None]:  # [1, num_rows, num_heads, value_head_dim]
    """Attend over the blocks of each sequence of the batch; rows of padding become zeros.

    Keywords are listed one by one on purpose: an ignored one would mean wrong text, so any other
    that is not None is a refusal of the model.
    """
    layer: PagedLayer | None = getattr(module, LAYER_ATTRIBUTE, None)
    _check_call(module, query, attention_mask, dropout, is_causal, others)
    assert layer is not None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    dtype = _cache_dtype(layer.context.ops, key.dtype)
    queries, keys, values = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    sinks = None if s_aux is None else s_aux.to(dtype)  # some models keep them in float32
    out = queries.new_empty((queries.shape[0], queries.shape[1], values.shape[2]))
    batch = layer.context.batch
    if batch is None:
        layer.shapes.append(
            LayerShape(
                num_heads=queries.shape[1],
                num_kv_heads=keys.shape[1],
                head_dim=keys.shape[2],
                value_head_dim=values.shape[2],
                dtype=dtype,
                sliding_window=sliding_window or 0,
                softcap=softcap or 0.0,
                has_sinks=s_aux is not None,
            )
        )
        return out.zero_()[None].to(query.dtype), None
    assert layer.key_cache is not None and layer.value_cache is not None
    attention = layer.context.attention
    assert attention is not None
    layer.context.ops.store_kv(keys, values, layer.key_cache, layer.value_cache, batch.slot_mapping)
    num_tokens = batch.num_tokens
    out[num_tokens:] = 0  # whatever lay there could be NaN, which some layers let spread
    attention.attend(
        queries[:num_tokens],
        layer.key_cache,
        layer.value_cache,
        batch,
        out[:num_tokens],
        Scores(scale, sliding_window or 0, softcap or 0.0, sinks),
    )
    return out[None].to(query.dtype), None


def _cache_dtype(ops: Ops, dtype: torch.dtype) -> torch.dtype:
    """The type of stored keys and values: csrc/cpu has no float16, and float32 loses nothing."""
    return torch.float32 if ops.name == "cpu" and dtype == torch.float16 else dtype


def _check_call(
    module: nn.Module,
    query: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    is_causal: bool | None,
    others: dict[str, Any],
) -> None:
    """Raise UnsupportedModelError if a layer asks for what paged attention does not do."""
    name = type(module).__name__
    if not hasattr(module, LAYER_ATTRIBUTE):
        raise UnsupportedModelError(f"{name} has no layer_idx")
    if asked := [key for key, value in others.items() if value is not None]:
        raise UnsupportedModelError(
            f"{name} asks attention for {asked[0]}, which is not known here"
        )
    if is_causal is None:  # as in transformers' own functions
        is_causal = getattr(module, "is_causal", True)
    if is_causal is False:
        raise UnsupportedModelError(f"{name} reads a text in both directions")
    if attention_mask is not None or dropout or query.shape[0] != 1:
        raise UnsupportedModelError(f"{name} wants a mask of its own")


def register() -> None:
    """Make `attn_implementation="parley_paged"` known to transformers; again is harmless."""
    from transformers.modeling_utils import (
        ALL_ATTENTION_FUNCTIONS,
    )  # takes long, where there is one

    function: Callable[..., Any] = paged_attention_forward
    ALL_ATTENTION_FUNCTIONS.register(NAME, function)


def attach_layers(model: nn.Module, context: StepContext) -> list[PagedLayer]:
    """Give every module that says which layer it belongs to the `PagedLayer` of that layer."""
    layers: dict[int, PagedLayer] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int):
            setattr(module, LAYER_ATTRIBUTE, layers.setdefault(index, PagedLayer(context)))
    return [layers[index] for index in sorted(layers)]
