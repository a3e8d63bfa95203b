"""A model of a fused family as its checkpoint holds it, in modules that only hold weights.

They have the names of transformers' modules, so that `decoder.py` packs either. Nothing computes
here but the rotations, as transformers computes them, to the last bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.core.models.checkpoint import Checkpoint
from engine.core.models.fused.plain_config import CLASSES, HEAD, PlainConfig
from engine.core.models.stored_weights import StoredWeight, read_or_find_weights
from engine.errors import UnsupportedModelError
from engine.folder.model_files import describe


class PlainModel(nn.Module):
    """What the decoder and the loader ask of a model; it computes nothing.

    `weights` are named as in a checkpoint. Without an output layer the embeddings are that, too.
    Of a weight that is still in its file the module has shape and `dtype`, and `stored`.
    """

    def __init__(
        self,
        config: PlainConfig,
        weights: Mapping[str, Tensor | StoredWeight],
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._dtype = dtype
        self.config = config
        self.generation_config = GenerationEnds(config.generation_eos_token_id)
        self.model = Weights("Model")
        self.model.layers = nn.ModuleList(
            Weights("DecoderLayer") for _ in range(config.num_hidden_layers)
        )
        self.model.rotary_emb = RotaryEmbedding(config)
        self.lm_head = Weights("Linear")
        for name, weight in weights.items():
            self._add(name, weight)
        for index in range(config.num_hidden_layers):
            attention: Any = self.get_submodule(f"model.layers.{index}.self_attn")
            attention.scaling = config.head_dim**-0.5
        embeddings = self.get_input_embeddings()
        if HEAD not in weights:
            self.lm_head.weight, self.lm_head.stored = embeddings.weight, embeddings.stored
        elif config.tie_word_embeddings and _are_equal(embeddings.weight, weights[HEAD]):
            self.lm_head.weight = embeddings.weight  # stored twice, and kept once

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def _add(self, name: str, weight: Tensor | StoredWeight) -> None:
        *path, own_name = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, Weights(_KINDS[part]))
            module = module.get_submodule(part)
        if isinstance(weight, StoredWeight):
            assert isinstance(module, Weights)
            module.stored = weight
            weight = torch.empty(weight.shape, dtype=self._dtype, device="meta")
        module.register_parameter(own_name, nn.Parameter(weight, requires_grad=False))

    def _get_name(self) -> str:
        """As it is shown: by transformers' name."""
        return CLASSES[self.config.model_type]


class Weights(nn.Module):
    """One module, which holds what it is given and is shown as a module of this kind."""

    layers: nn.ModuleList
    rotary_emb: "RotaryEmbedding"
    embed_tokens: "Weights"
    weight: nn.Parameter
    bias: nn.Parameter | None
    stored: StoredWeight | None = None  # the weight, if it is still in its file

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self.register_parameter("bias", None)  # until one is added

    def _get_name(self) -> str:
        return self._kind

    def extra_repr(self) -> str:
        weights = self.named_parameters(recurse=False)
        return ", ".join(f"{name}={list(weight.shape)}" for name, weight in weights)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions: transformers' formulas, so that not one bit differs."""

    inv_freq: Tensor

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        rope = config.rope_parameters
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
        frequencies: Tensor = 1.0 / (rope["rope_theta"] ** steps)
        if rope["rope_type"] == "linear":
            frequencies = frequencies / rope["factor"]
        elif rope["rope_type"] == "llama3":
            frequencies = _as_llama3(frequencies, rope)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both are [num_texts, num_positions, head_dim], of the dtype of `like`."""
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


@dataclass(frozen=True, slots=True)
class GenerationEnds:
    """What of generation_config.json is read."""

    eos_token_id: int | list[int] | None


def build_plain_model(
    checkpoint: Checkpoint, config: PlainConfig, dtype: torch.dtype, *, keeps_numbers: bool
) -> PlainModel:
    """Read the weights, which are those of the config. Raises `UnsupportedModelError`.

    Those that lie there as codes are read when they are packed: as whole numbers, if they are such
    and `keeps_numbers`.
    """
    try:
        spare = checkpoint.zero_biases - config.weight_shapes().keys()
        weights = read_or_find_weights(checkpoint, dtype, keeps_numbers=keeps_numbers)
        return PlainModel(config, {n: w for n, w in weights if n not in spare}, dtype)
    except Exception as error:  # the files may change while they are read, or memory be short
        raise UnsupportedModelError(f"{checkpoint.folder}: {describe(error)}") from None


def _are_equal(table: Tensor, head: Tensor | StoredWeight) -> bool:
    return isinstance(head, Tensor) and not table.is_meta and torch.equal(table, head)


def _as_llama3(frequencies: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Slow rotations are slowed down further, fast ones stay, and those between do in part."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    num_positions = rope["original_max_position_embeddings"]
    lengths = 2 * math.pi / frequencies  # of a whole turn, in positions
    slowed = torch.where(lengths > num_positions / low, frequencies / factor, frequencies)
    share = (num_positions / lengths - low) / (high - low)
    between = (1 - share) * slowed / factor + share * slowed
    is_between = ~(lengths < num_positions / high) * ~(lengths > num_positions / low)
    return torch.where(is_between, between, slowed)


_KINDS = {
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), "RMSNorm"),
    **dict.fromkeys(("q_norm", "k_norm"), "RMSNorm"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "Linear"),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "Linear"),
    "embed_tokens": "Embedding",
    "self_attn": "Attention",
    "mlp": "MLP",
}
