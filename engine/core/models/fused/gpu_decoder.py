"""`GpuDecoder`: llama, mistral, qwen2 and qwen3 on a GPU, a dozen kernels for a layer.

What lies between the matrix products is one kernel each: a sum and its norm, rotation and the way
into the KV cache, gate and activation. Query, key and value are one product, and so are gate and
up. Rows keep the type of the weights between them, as in transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.core.attention.backends import AttentionBackend
from engine.core.attention.scores import Scores
from engine.core.models.fused.shape import DecoderShape, drop_weights, read_shape, rotary_table
from engine.core.ops import row_reference as row_ops
from engine.core.ops.library import Ops
from engine.core.tensors.batch import Batch


@dataclass(frozen=True, slots=True)
class RowOps:
    """What csrc/cuda computes between the products: as built, or in torch (`row_reference`)."""

    add_rms_norm: Callable[[Tensor, Tensor | None, Tensor, Tensor, float], None]
    rotate_and_store: Callable[
        [Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor, int, float], None
    ]
    silu_and_mul: Callable[[Tensor, Tensor], None]

    @classmethod
    def of(cls, library: Any) -> "RowOps":
        """Those of `torch.ops.parley_cuda`."""
        return cls(library.add_rms_norm, library.rotate_and_store, library.silu_and_mul)


REFERENCE = RowOps(
    row_ops.add_rms_norm_reference,
    row_ops.rotate_and_store_reference,
    row_ops.silu_and_mul_reference,
)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer, all of one type."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    qk_norms: Tensor | None  # [2, head_dim]
    attention_out: Tensor  # [hidden, num_heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * gated, hidden]
    down: Tensor  # [hidden, gated]


class GpuDecoder:
    """A model's weights and its forward pass; the KV cache is the runner's to allocate.

    `rotate` is transformers' module that gives the cosines and sines of positions.
    """

    def __init__(
        self,
        shape: DecoderShape,
        embeddings: Tensor,  # [vocab, hidden]
        layers: list[LayerWeights],
        norm: Tensor,  # [hidden], the last one
        head: Tensor,  # [vocab, hidden]
        rotate: nn.Module,
        ops: RowOps,
        attention: AttentionBackend,
    ) -> None:
        self.shape = shape
        self.embeddings = embeddings
        self.layers = layers
        self.norm = norm
        self.head = head
        self.rotate = rotate
        # [num_blocks, num_layers, 2, page_size, num_kv_heads, head_dim], keys and then values: what
        # all layers have of a block lies together, to be copied or cleared at once.
        self.cache = torch.empty(0)
        self.hidden: Tensor | None = None  # [num_hidden, hidden], of the last step
        self.rotary = torch.empty(0)  # [num_positions, 2, head_dim / 2] float32
        self._ops = ops
        self._attention = attention

    @property
    def device(self) -> torch.device:
        return self.embeddings.device

    @property
    def caches(self) -> list[Tensor]:
        """The memory of all keys and values."""
        return [self.cache]

    @property
    def cache_bytes_per_token(self) -> int:
        """In all layers together."""
        shape = self.shape
        head_bytes = shape.head_dim * shape.cache_dtype.itemsize
        return 2 * shape.num_layers * shape.num_kv_heads * head_bytes

    def allocate_cache(self, num_blocks: int, num_positions: int) -> None:
        """The KV cache, and rotations for sequences of `num_positions` tokens at most."""
        shape = self.shape
        of_block = (self._attention.page_size, shape.num_kv_heads, shape.head_dim)
        sizes = (num_blocks, shape.num_layers, 2, *of_block)
        self.cache = torch.zeros(sizes, dtype=shape.cache_dtype, device=self.device)
        self.rotary = rotary_table(self.rotate, num_positions, self.device)

    def drop_cache(self) -> None:
        """Give its memory back; `allocate_cache` makes another one."""
        self.cache = self.rotary = torch.empty(0)
        self.hidden = None

    def drop_weights(self) -> None:
        """Give their memory back. It computes nothing any more."""
        self.embeddings = self.norm = self.head = self.embeddings.new_empty(0)
        self.layers.clear()

    def forward(self, batch: Batch) -> Tensor:
        """One pass; the logits of the wanted rows, [num_wanted, vocab] of the weights' type.

        `hidden` has the last hidden states that the batch wants, in memory of their own.
        """
        shape, ops = self.shape, self._ops
        num_heads, head_dim, num_tokens = shape.num_heads, shape.head_dim, batch.num_tokens
        num_queries = num_heads * head_dim
        hidden = functional.embedding(batch.input_ids, self.embeddings)  # [num_rows, hidden]
        rows = torch.empty_like(hidden)
        attended = hidden.new_zeros(len(hidden), num_heads, head_dim)
        gated = hidden.new_empty(len(hidden), self.layers[0].down.shape[1])
        delta: Tensor | None = None
        caches = self.cache.unbind(1)
        for layer, window, cache in zip(self.layers, shape.windows, caches, strict=True):
            keys, values = cache.unbind(1)  # [num_blocks, page_size, num_kv_heads, head_dim]
            ops.add_rms_norm(hidden, delta, layer.attention_norm, rows, shape.epsilon)
            qkv = functional.linear(rows, layer.qkv, layer.qkv_bias)
            ops.rotate_and_store(
                qkv,
                layer.qk_norms,
                self.rotary,
                batch.positions,
                batch.slot_mapping,
                keys,
                values,
                num_heads,
                shape.epsilon,
            )
            queries = qkv[:num_tokens, :num_queries].view(-1, num_heads, head_dim)
            out = attended[:num_tokens]
            scores = Scores(shape.scale, window)
            self._attention.attend(queries, keys, values, batch, out, scores)
            delta = functional.linear(attended.flatten(1), layer.attention_out)
            ops.add_rms_norm(hidden, delta, layer.mlp_norm, rows, shape.epsilon)
            ops.silu_and_mul(functional.linear(rows, layer.gate_up), gated)
            delta = functional.linear(gated, layer.down)
        wanted = batch.logits_rows[: batch.num_wanted]
        assert delta is not None
        self.hidden = None
        if batch.hidden_rows is not None:
            states = hidden[batch.hidden_rows]
            self.hidden = torch.empty_like(states)
            ops.add_rms_norm(
                states, delta[batch.hidden_rows], self.norm, self.hidden, shape.epsilon
            )
        hidden, rows = hidden[wanted], rows[: batch.num_wanted]
        ops.add_rms_norm(hidden, delta[wanted], self.norm, rows, shape.epsilon)
        return functional.linear(rows, self.head)


def fuse_for_gpu(
    model: Any, ops: Ops, choose: Callable[[DecoderShape], AttentionBackend]
) -> GpuDecoder:
    """Take the weights of a loaded transformers model, layer by layer: it loses them thereby.

    Raises ValueError if a layer has other parameters than those that are computed.
    """
    shape = read_shape(model, model.dtype)
    embeddings = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    return GpuDecoder(
        shape,
        embeddings,
        [_take_layer(layer) for layer in model.model.layers],
        model.model.norm.weight,
        head,
        model.model.rotary_emb,
        RowOps.of(torch.ops.parley_cuda) if ops.name == "cuda" else REFERENCE,
        choose(shape),
    )


def _take_layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [projection.bias for projection in projections if projection.bias is not None]
    norms = (
        [attention.q_norm.weight, attention.k_norm.weight] if hasattr(attention, "q_norm") else []
    )
    weights = LayerWeights(
        attention_norm=layer.input_layernorm.weight,
        qkv=torch.cat([projection.weight for projection in projections]),
        qkv_bias=torch.cat(biases) if biases else None,
        qk_norms=torch.stack(norms) if norms else None,
        attention_out=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )
    drop_weights(layer)  # of what was put together there would be two copies
    return weights
