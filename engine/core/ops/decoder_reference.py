"""What `torch.ops.parley.decoder_step` computes, written to be read; it takes the groups."""

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.ops.adapters import StepAdapters, unpack_module
from engine.core.ops.decoder_step import HiddenRows, LoadedDecoder, StepInput
from engine.core.ops.packing import PANEL_OUTPUTS, PackedWeight, round_rows
from engine.core.ops.reference import paged_attention_reference, store_kv_reference
from engine.core.ops.stacks import PackedStack


def decoder_step_reference(
    inputs: StepInput,
    decoder: LoadedDecoder,
    logits: Tensor,
    hidden_rows: HiddenRows | None = None,
    adapters: StepAdapters | None = None,
) -> None:
    """One forward pass in float32: it writes the cache, `logits` and `hidden_rows.out`.

    Rows that int8 weights multiply are rounded as there, and so are keys and values for int8
    caches, one scale for each token and head.
    """
    weights, cache, settings = decoder.weights, decoder.cache, decoder.settings
    num_heads = settings.num_heads
    num_kv_heads, head_dim = cache.keys.shape[-2:]
    num_rows = len(inputs.input_ids)

    def product(rows: Tensor, packed: PackedWeight, place: int = 0) -> Tensor:
        weight = packed.unpack(place)
        rows = functional.pad(rows, (0, weight.shape[1] - rows.shape[1]))
        return functional.linear(rows if packed.scales is None else round_rows(rows), weight)

    def multiply(rows: Tensor, stack: PackedStack, layer: int) -> Tensor:
        pieces = [
            product(rows, stack.kinds[kind], place)[:, :num_outputs]
            for kind, place, num_outputs in stack.layers[layer]
        ]
        return torch.cat(pieces, 1)

    def adapted(out: Tensor, rows: Tensor, layer: int, module: int) -> Tensor:
        if adapters is None:
            return out
        out = out.clone()
        for index in range(len(adapters.weights)):
            pair = unpack_module(adapters, index, decoder.module_sizes, layer, module)
            if pair is not None:
                of_index = adapters.rows == index
                down, up = pair
                delta = (rows[of_index] @ down.T)[:, : up.shape[1]] @ up.T
                out[of_index] += delta[:, : out.shape[1]]
        return out

    def normalize(rows: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(rows, weight.shape, weight, settings.epsilon)

    rotary = decoder.rotary[inputs.positions].unsqueeze(2)
    cosines, sines = rotary.unbind(1)  # [num_rows, 1, head_dim / 2]

    def rotate(heads: Tensor) -> Tensor:
        low, high = heads.chunk(2, -1)
        return torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)

    table = weights.head.unpack(0) if weights.embeddings is None else weights.embeddings.float()
    hidden = table[inputs.input_ids]
    for layer, window in enumerate(settings.windows):
        rows = normalize(hidden, weights.norms[2 * layer])
        heads = multiply(rows, weights.qkv, layer)
        if weights.qkv_bias is not None:
            heads = heads + weights.qkv_bias[layer]
        sizes = [num_heads * head_dim, *[num_kv_heads * head_dim] * 2]
        queries, keys, values = (
            adapted(part, rows, layer, module).view(num_rows, -1, head_dim)
            for module, part in enumerate(torch.split(heads, sizes, 1))
        )
        if weights.qk_norms is not None:
            queries, keys = (
                normalize(queries, weights.qk_norms[layer, 0]),
                normalize(keys, weights.qk_norms[layer, 1]),
            )
        caches = cache.keys[layer], cache.values[layer]
        keys = rotate(keys)
        if cache.scales is not None:
            keys, key_scales = round_heads(keys)
            values, value_scales = round_heads(values)
            scales = [part.transpose(1, 2)[..., None] for part in cache.scales[layer].unbind(1)]
            store_kv_reference(key_scales, value_scales, scales[0], scales[1], inputs.slot_mapping)
        store_kv_reference(keys, values, *caches, inputs.slot_mapping)
        if cache.scales is not None:
            caches = caches[0] * scales[0], caches[1] * scales[1]
        attended = torch.empty(num_rows, num_heads, head_dim)
        batch = inputs.block_tables, inputs.cu_seqlens_q, inputs.seq_lens
        paged_attention_reference(
            rotate(queries), *caches, *batch, attended, settings.scale, window, 0.0, None
        )
        out = multiply(attended.flatten(1), weights.attention_out, layer)
        hidden = adapted(hidden + out, attended.flatten(1), layer, 3)
        rows = normalize(hidden, weights.norms[2 * layer + 1])
        panels = multiply(rows, weights.gate_up, layer).view(num_rows, -1, 2, PANEL_OUTPUTS)
        gates, ups = (
            adapted(panels[:, :, place].flatten(1), rows, layer, 4 + place) for place in (0, 1)
        )
        gated = functional.silu(gates) * ups
        num_inputs = weights.down.num_inputs
        hidden = hidden + multiply(gated[:, :num_inputs], weights.down, layer)
        hidden = adapted(hidden, gated[:, :num_inputs], layer, 6)
    if hidden_rows is not None:
        hidden_rows.out.copy_(normalize(hidden[hidden_rows.rows], weights.norms[-1]))
    rows = normalize(hidden[inputs.logits_rows[: len(logits)]], weights.norms[-1])
    logits.copy_(product(rows, weights.head)[:, : logits.shape[1]])


def round_heads(heads: Tensor) -> tuple[Tensor, Tensor]:
    """[num_rows, num_heads, head_dim] → whole numbers up to 127, and the scale of each head."""
    largest = heads.abs().amax(-1, keepdim=True)
    return (heads * (127 / largest.clamp(min=1e-30))).round(), largest / 127
