"""Adapters of a model that the fused decoder computes, packed for its step."""

from collections.abc import Mapping

import torch

from engine.core.models.fused.decoder import FusedDecoder
from engine.core.models.lora.adapter_folder import AdapterWeights
from engine.core.ops.adapters import MODULES, LowRankPair, PackedAdapter, pack_adapter
from engine.core.ops.decoder_step import module_sizes

_PARENTS = {name: "self_attn" for name in MODULES[:4]} | {name: "mlp" for name in MODULES[4:]}


class FusedAdapters:
    """The modules of one decoder that may be adapted: all linear ones but the output layer.

    It keeps their sizes, not the decoder, which is another one after a sleep. `layers` is the name
    of its layers in the model, such as `model.layers`.
    """

    def __init__(self, decoder: FusedDecoder, num_gated: int, layers: str) -> None:
        shape, is_float = decoder.shape, decoder.weights.qkv.formats == ("float32",)
        self._format = "float32" if is_float else "bfloat16"  # as precise as the model at least
        self._num_layers = shape.num_layers
        self._sizes = module_sizes(
            decoder.weights, shape.num_heads, shape.num_kv_heads, shape.head_dim
        )
        hidden, attended = shape.hidden_size, shape.num_heads * shape.head_dim
        keys = shape.num_kv_heads * shape.head_dim
        outputs = (attended, keys, keys, hidden, num_gated, num_gated, hidden)
        inputs = (hidden, hidden, hidden, attended, hidden, hidden, num_gated)
        self._places = {
            f"{layers}.{layer}.{_PARENTS[name]}.{name}": (layer, module)
            for layer in range(shape.num_layers)
            for module, name in enumerate(MODULES)
        }
        self.shapes = {
            name: (outputs[module], inputs[module]) for name, (_, module) in self._places.items()
        }

    def prepare(self, weights: AdapterWeights) -> PackedAdapter:
        """The adapter as the decoder's step reads it."""
        layers: list[dict[int, LowRankPair]] = [{} for _ in range(self._num_layers)]
        for name, low_rank in weights.modules.items():
            layer, module = self._places[name]
            layers[layer][module] = (low_rank.down, low_rank.up)
        rank = max(len(low_rank.down) for low_rank in weights.modules.values())
        of_layers: list[Mapping[int, LowRankPair]] = [*layers]
        with torch.inference_mode():
            return pack_adapter(self._sizes, of_layers, rank, self._format)
