"""What config.json says of each architecture besides the sizes that all have.

A file leaves out what llama.cpp knows by itself, such as which layers of Gemma 2 see a window.
Each function here adds that, as llama.cpp has it. Where config.json would say more than the file
does, such as the window of a Starcoder 2, it says what llama.cpp computes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.folder.gguf.architectures.places import Config
from engine.folder.gguf.metadata import Metadata
from engine.folder.gguf.parts import GgufModel
from engine.folder.model_config import MAX_SIZE

SOFTMAX, SOFTMAX_OF_CHOSEN = 1, 3  # `expert_gating_func`, as llama.cpp counts them
LARGEST_GEMMA2, LARGEST_GEMMA3 = 46, 62  # layers of those of 27B, which scale their scores by more
WINDOW, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Source:
    """Of what is said: `config` is what is known so far."""

    model: GgufModel
    metadata: Metadata
    config: Config

    def has(self, tensor: str) -> bool:
        return tensor in self.model.tensors

    def size(self, key: str, default: int | None = None) -> int:
        """A number of something that has weights; without a default it must be there."""
        size = self.metadata.count(key, default)
        if not 1 <= size <= MAX_SIZE:
            self.metadata.refuse_value(key, size, f"must be from 1 to {MAX_SIZE}")
        return size

    def scale(self, key: str, default: float) -> float:
        """A number above 0; 0 stands for the default."""
        value = self.metadata.number(key, 0.0) or default
        if value < 0:
            self.metadata.refuse_value(key, value, "must be above 0")
        return value

    @property
    def num_layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    @property
    def head_dim(self) -> int:
        return int(self.config["head_dim"])


Fields = Callable[[Source], dict[str, Any]]


def nothing(of: Source) -> dict[str, Any]:
    """All is said already."""
    return {}


def mixtral(of: Source) -> dict[str, Any]:
    return {
        **_mixture(of, "num_local_experts"),
        "intermediate_size": of.size("{arch}.expert_feed_forward_length", _width(of)),
        "sliding_window": None,
    }


def qwen2_moe(of: Source) -> dict[str, Any]:
    return {
        **_qwen_mixture(of, norms=False),
        "shared_expert_intermediate_size": of.size(
            "{arch}.expert_shared_feed_forward_length", _width(of)
        ),
        "norm_topk_prob": False,
        "qkv_bias": True,
    }


def qwen3_moe(of: Source) -> dict[str, Any]:
    return {**_qwen_mixture(of, norms=True), "norm_topk_prob": True, "attention_bias": False}


def olmoe(of: Source) -> dict[str, Any]:
    return {
        **_mixture(of, "num_experts", norms=False),
        "intermediate_size": of.size("{arch}.expert_feed_forward_length", _width(of)),
        "norm_topk_prob": False,
        "clip_qkv": None,
    }


def gpt_oss(of: Source) -> dict[str, Any]:
    """The YaRN of these models does not round where its range begins and ends."""
    rope = dict(of.config["rope_parameters"])
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False
    return {
        **_mixture(of, "num_local_experts", gate=SOFTMAX_OF_CHOSEN),
        "intermediate_size": of.size("{arch}.expert_feed_forward_length", _width(of)),
        "rope_parameters": rope,
        "sliding_window": of.size("{arch}.attention.sliding_window"),
        "layer_types": _layer_types(of, 2),
        "attention_bias": True,
    }


def granite(of: Source) -> dict[str, Any]:
    if not of.metadata.flag("{arch}.rope.scaling.finetuned", True):
        of.metadata.refuse("has no rotary positions, which is not computed")
    return {
        "attention_multiplier": of.scale("{arch}.attention.scale", 1 / math.sqrt(of.head_dim)),
        "embedding_multiplier": of.scale("{arch}.embedding_scale", 1.0),
        "residual_multiplier": of.scale("{arch}.residual_scale", 1.0),
        "logits_scaling": of.scale("{arch}.logit_scale", 1.0),
        "attention_bias": False,
        "mlp_bias": False,
    }


def granitemoe(of: Source) -> dict[str, Any]:
    width = of.size("{arch}.expert_feed_forward_length", _width(of))
    return {**granite(of), **_mixture(of, "num_local_experts"), "intermediate_size": width}


def gemma(of: Source) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh"}


def gemma2(of: Source) -> dict[str, Any]:
    return {
        **_gemma_scale(of, LARGEST_GEMMA2),
        "attn_logit_softcapping": of.scale("{arch}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": of.scale("{arch}.final_logit_softcapping", 30.0),
        "sliding_window": of.size("{arch}.attention.sliding_window", 4096),
        "layer_types": _layer_types(of, 2),
    }


def gemma3(of: Source) -> dict[str, Any]:
    window = of.metadata.count("{arch}.attention.sliding_window", 0)
    local = of.scale("{arch}.rope.freq_base_swa", 10_000.0)
    return {
        **_gemma_scale(of, LARGEST_GEMMA3),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": of.scale("{arch}.final_logit_softcapping", 0.0) or None,
        "sliding_window": window or 4096,
        "layer_types": _layer_types(of, 6) if window else [FULL] * of.num_layers,
        "rope_parameters": {
            FULL: of.config["rope_parameters"],
            WINDOW: {"rope_type": "default", "rope_theta": local},
        },
    }


def phi3(of: Source) -> dict[str, Any]:
    """The window is that of the file, which llama.cpp passes over for these models alone."""
    original = "{arch}.rope.scaling.original_context_length"
    return {
        "sliding_window": of.metadata.count("{arch}.attention.sliding_window", 0) or None,
        "original_max_position_embeddings": of.size(original, of.config["max_position_embeddings"]),
    }


def smollm3(of: Source) -> dict[str, Any]:
    """Every fourth layer knows nothing of positions."""
    return {"no_rope_layer_interval": 4, "use_sliding_window": False, "attention_bias": False}


def olmo2(of: Source) -> dict[str, Any]:
    return {"attention_bias": False}


def glm4(of: Source) -> dict[str, Any]:
    return {"attention_bias": of.has("blk.0.attn_q.bias")}


def cohere(of: Source) -> dict[str, Any]:
    return {
        "logit_scale": of.scale("{arch}.logit_scale", 1.0),
        "use_qk_norm": of.has("blk.0.attn_q_norm.weight"),
        "attention_bias": False,
    }


def cohere2(of: Source) -> dict[str, Any]:
    """Layers without a window know nothing of positions."""
    return {
        "logit_scale": of.scale("{arch}.logit_scale", 1.0),
        "sliding_window": of.size("{arch}.attention.sliding_window"),
        "layer_types": _layer_types(of, 4),
        "attention_bias": False,
    }


def starcoder2(of: Source) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None}


def stablelm(of: Source) -> dict[str, Any]:
    """Whether attention and the rest read the same norm, llama.cpp sees by its weights, too."""
    of.metadata.flag("{arch}.use_parallel_residual", False)
    return {
        "use_parallel_residual": not of.has("blk.0.ffn_norm.weight"),
        "use_qkv_bias": of.has("blk.0.attn_q.bias"),
        "qk_layernorm": of.has("blk.0.attn_q_norm.weight"),
    }


def relu2(of: Source) -> dict[str, Any]:
    """Nemotron and Arcee."""
    return {"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}


def mistral(of: Source) -> dict[str, Any]:
    return {"sliding_window": None}


def ministral3(of: Source) -> dict[str, Any]:
    """Scores grow with the position by a number of Llama 4, and YaRN has a scale for all."""
    rope = dict(of.config["rope_parameters"])
    if rope["rope_type"] != "yarn":
        of.metadata.refuse("scales scores by their position, but does not rotate by YaRN")
    every = of.scale("{arch}.rope.scaling.yarn_log_multiplier", 0.0)
    if not every:
        of.metadata.refuse("does not say by how much YaRN scales (yarn_log_multiplier)")
    beta = of.metadata.number("{arch}.attention.temperature_scale")
    rope |= {"mscale": 1.0, "mscale_all_dim": every, "llama_4_scaling_beta": beta}
    return {"rope_parameters": rope, "sliding_window": None}


def _width(of: Source) -> int:
    return int(of.config["intermediate_size"])


def _mixture(of: Source, name: str, *, gate: int = SOFTMAX, norms: bool = True) -> dict[str, Any]:
    """Number of experts, and of those that a token goes through.

    How they are chosen is known of each family. A file that says otherwise is refused.
    """
    metadata = of.metadata
    count, chosen = of.size("{arch}.expert_count"), of.size("{arch}.expert_used_count")
    if chosen > count:
        metadata.refuse(f"sends each token through {chosen} of {count} experts")
    said = metadata.count("{arch}.expert_gating_func", gate)
    if said not in (0, gate):
        metadata.refuse_value("{arch}.expert_gating_func", said, f"is {gate} in these models")
    if metadata.flag("{arch}.expert_weights_norm", norms) != norms:
        metadata.refuse_value(
            "{arch}.expert_weights_norm", not norms, f"is {norms} in these models"
        )
    if metadata.number("{arch}.expert_weights_scale", 0.0) not in (0.0, 1.0):
        metadata.refuse("scales what its experts say, which is not computed")
    return {name: count, "num_experts_per_tok": chosen}


def _qwen_mixture(of: Source, *, norms: bool) -> dict[str, Any]:
    mixture = _mixture(of, "num_experts", norms=norms)
    chosen: int = mixture["num_experts_per_tok"]
    width = of.size("{arch}.expert_feed_forward_length", max(1, _width(of) // chosen))
    layers = {"decoder_sparse_step": 1, "mlp_only_layers": []}
    return {**mixture, **layers, "moe_intermediate_size": width, "use_sliding_window": False}


def _gemma_scale(of: Source, largest: int) -> dict[str, Any]:
    """By the root of what scores are divided: of a head's width, or in the largest of its share."""
    share: int = of.config["hidden_size"] // of.config["num_attention_heads"]
    scale = share if of.num_layers == largest else of.head_dim
    return {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scale}


def _layer_types(of: Source, period: int) -> list[str]:
    """The last of so many layers sees all; a file may say another period, or each layer's."""
    key, metadata = "{arch}.attention.sliding_window_pattern", of.metadata
    if metadata.is_list(key):
        flags = metadata.numbers(key) or ()
        if len(flags) != of.num_layers:
            metadata.refuse_value(key, len(flags), f"must be of {of.num_layers} layers")
        return [WINDOW if flag else FULL for flag in flags]
    period = of.size(key, period)
    return [FULL if (index + 1) % period == 0 else WINDOW for index in range(of.num_layers)]
