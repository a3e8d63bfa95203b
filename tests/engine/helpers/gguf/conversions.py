"""What llama.cpp's convert_hf_to_gguf does to the checkpoints of each architecture, in our words.

`add_fields` writes what it writes besides the sizes that all models have; `converted` renames the
weights by the `gguf` package's own map, and changes those that it changes.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import torch
from gguf import GGUFWriter
from torch import Tensor

Config = Mapping[str, Any]
ARCHITECTURES = {
    **dict.fromkeys(("llama", "mistral", "mixtral"), gguf.MODEL_ARCH.LLAMA),
    **{"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3},
    **{"qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE},
    **{"gemma": gguf.MODEL_ARCH.GEMMA, "gemma2": gguf.MODEL_ARCH.GEMMA2},
    **{"gemma3_text": gguf.MODEL_ARCH.GEMMA3, "phi3": gguf.MODEL_ARCH.PHI3},
    **{"gpt_oss": gguf.MODEL_ARCH.GPT_OSS, "glm4": gguf.MODEL_ARCH.GLM4},
    **{"granite": gguf.MODEL_ARCH.GRANITE, "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE},
    **{"olmo2": gguf.MODEL_ARCH.OLMO2, "olmoe": gguf.MODEL_ARCH.OLMOE},
    **{"starcoder2": gguf.MODEL_ARCH.STARCODER2, "smollm3": gguf.MODEL_ARCH.SMOLLM3},
    **{"cohere": gguf.MODEL_ARCH.COMMAND_R, "cohere2": gguf.MODEL_ARCH.COHERE2},
    **{"stablelm": gguf.MODEL_ARCH.STABLELM, "nemotron": gguf.MODEL_ARCH.NEMOTRON},
    **{"ministral3": gguf.MODEL_ARCH.MISTRAL3, "arcee": gguf.MODEL_ARCH.ARCEE},
}
# The classes that derive from LlamaModel there, which permutes queries and keys.
_PERMUTED = frozenset(
    ("llama", "mistral", "mixtral", "granite", "granitemoe", "smollm3", "ministral3", "arcee")
)
_ADDED_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron")
_EXPERT = re.compile(r"(model\.layers\.\d+\.\w+\.experts)\.(\d+)\.(\w+)\.weight")


def add_fields(writer: GGUFWriter, config: Config) -> None:
    """Of these: Gemma2Model, Phi3MiniModel, GptOssModel and so on, and what they build on."""
    kind = config["model_type"]
    if (count := config.get("num_experts") or config.get("num_local_experts")) is not None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if (width := config.get("moe_intermediate_size")) is not None:
        writer.add_expert_feed_forward_length(width)
    if (width := config.get("shared_expert_intermediate_size")) is not None:
        writer.add_expert_shared_feed_forward_length(width)
    if kind in ("gemma2", "gemma3_text", "gpt_oss", "cohere2"):
        writer.add_sliding_window(config["sliding_window"])
    if kind == "phi3":
        writer.add_sliding_window(config["sliding_window"] or 0)
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        _add_long_factors(writer, config)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if kind in ("granite", "granitemoe"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if kind in ("cohere", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind == "stablelm":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if kind == "ministral3":
        rope = config["rope_parameters"]
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def rope_of(config: Config) -> Mapping[str, Any]:
    """That of layers that see all."""
    rope: Mapping[str, Any] = config["rope_parameters"]
    full: Mapping[str, Any] = rope.get("full_attention", rope)
    return full


def rotated(config: Config, head_dim: int) -> int:
    """How many numbers of each head."""
    return int(head_dim * rope_of(config).get("partial_rotary_factor", 1.0))


def _add_long_factors(writer: GGUFWriter, config: Config) -> None:
    rope = config["rope_parameters"]
    if rope["rope_type"] != "longrope":
        return
    original = config["original_max_position_embeddings"]
    scale = config["max_position_embeddings"] / original
    factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    writer.add_rope_scaling_attn_factors(factor)
    for name in ("long", "short"):
        factors = torch.tensor(rope[f"{name}_factor"], dtype=torch.float32).numpy()
        writer.add_tensor(f"rope_factors_{name}.weight", factors)


def converted(weights: Mapping[str, Tensor], config: Config) -> Iterator[tuple[str, str, Tensor]]:
    """The tensors of the file: their names in the checkpoint, or nearly, and in the file."""
    names = gguf.get_tensor_name_map(
        ARCHITECTURES[config["model_type"]], config["num_hidden_layers"]
    )
    for name, weight in _changed(_stacked(weights), config):
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        yield name, own, weight.squeeze()


def _stacked(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Experts, and norms of heads, in one tensor each."""
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, weight in weights.items():
        if found := _EXPERT.fullmatch(name):
            stacks.setdefault(f"{found[1]}.{found[3]}.weight", {})[int(found[2])] = weight
        elif found := re.fullmatch(r"(.*_layernorm)\.norms\.(\d+)\.weight", name):
            stacks.setdefault(f"{found[1]}.weight", {})[int(found[2])] = weight
        else:
            yield name, weight
    for name, parts in stacks.items():
        yield name, torch.stack([parts[index] for index in range(len(parts))])


def _changed(weights: Iterator[tuple[str, Tensor]], config: Config) -> Iterator[tuple[str, Tensor]]:
    kind = config["model_type"]
    for name, weight in weights:
        if kind in _ADDED_ONE and name.endswith("norm.weight"):
            yield name, weight + 1
        elif kind == "granitemoe" and name.endswith("input_linear.weight"):
            base = name.removesuffix("input_linear.weight")
            gate, up = weight.chunk(2, dim=-2)
            yield f"{base}experts.w1.weight", gate
            yield f"{base}experts.w3.weight", up
        elif kind == "granitemoe" and name.endswith("output_linear.weight"):
            yield name.replace("output_linear", "experts.w2"), weight
        elif kind == "gpt_oss":
            yield from _of_gpt_oss(name, weight)
        elif kind in _PERMUTED:
            yield name, _permuted(name, weight, config)
        else:
            yield name, weight


def _of_gpt_oss(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name.endswith("sinks"):
        yield f"{name}.weight", weight
    elif "down_proj" in name:
        is_bias = name.endswith("_bias")
        base = name.removesuffix("_bias")
        yield f"{base}.{'bias' if is_bias else 'weight'}", weight if is_bias else weight.mT
    elif "gate_up_proj" in name:
        is_bias = name.endswith("_bias")
        base = name.removesuffix("_bias").removesuffix("gate_up_proj")
        rows = weight if is_bias else weight.mT
        suffix = "bias" if is_bias else "weight"
        yield f"{base}gate_proj.{suffix}", rows[:, ::2]
        yield f"{base}up_proj.{suffix}", rows[:, 1::2]
    else:
        yield name, weight


def _permuted(name: str, weight: Tensor, config: Config) -> Tensor:
    """LlamaModel.permute of the converter."""
    heads = 0
    if name.endswith("q_proj.weight"):
        heads = config["num_attention_heads"]
    if name.endswith("k_proj.weight"):
        heads = config["num_key_value_heads"]
    if not heads:
        return weight
    parts = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape).contiguous()
