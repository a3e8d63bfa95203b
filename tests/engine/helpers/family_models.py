"""Tiny random checkpoints of nearly every causal language model that transformers knows.

A family's own configuration is taken, with whatever it calls its sizes made small; some need a word
more, which stands in `_FIELDS`.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.helpers.tiny_model import randomize_biases_and_norms, save_tiny_model

NUM_LAYERS = 4
_WIDTH = ("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size", "word_embed_proj_dim")
_MLP_WIDTH = ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
_HEADS = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads"),
    *("encoder_attention_heads", "decoder_attention_heads"),
)
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
_SIZES: dict[str, int] = {
    **dict.fromkeys(_WIDTH, 64),
    **dict.fromkeys(_MLP_WIDTH, 96),
    **dict.fromkeys(_LAYERS, NUM_LAYERS),
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(_POSITIONS, 512),
    **dict.fromkeys(_EXPERTS, 4),
    **dict.fromkeys(_CHOSEN, 2),
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 384,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "rotary_dim": 8,
    "first_k_dense_replace": 1,
    "sliding_window": 6,
}
_LATENT: dict[str, int] = {  # whose keys and values are expanded from a narrow row
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,  # of what is rotated
    "num_key_value_heads": 4,
}
_SPECIAL_IDS: dict[str, int] = {"pad_token_id": 0, "eos_token_id": 0, "bos_token_id": 0}
_FULL = ["full_attention"] * NUM_LAYERS
_MIXED = ["sliding_attention", "full_attention"] * (NUM_LAYERS // 2)
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_TINY_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 6,  # more than the text has
    "num_attention_heads": 2,
}
_GEMMA4: dict[str, Any] = {
    "layer_types": _MIXED,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "global_head_dim": 16,
}

_OPTIONAL = ("head_dim", "num_key_value_heads", "q_lora_rank", "kv_lora_rank")  # mostly None

# What differs from the above; a field that is "-" keeps the family's own value.
_FIELDS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {kind: _DEFAULT_ROPE for kind in _MIXED},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon": {"head_dim": "-"},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": _MIXED},
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": NUM_LAYERS},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "longcat_flash": {"num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "nemotron": {"head_dim": 16},
    "phi4_multimodal": {
        "eos_token_id": [0],  # it takes 0 for none, and has its own beyond our vocabulary
        "vision_config": _TINY_VISION | {"image_size": 28, "crop_size": 28},
        "audio_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_blocks": 2,
            "num_attention_heads": 2,
            "ext_pw_out_channel": 32,
            "nemo_conv_channels": 8,
        },
    },
    "prophetnet": {"num_hidden_layers": "-", "num_decoder_layers": 4, "num_encoder_layers": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xlnet": {"max_position_embeddings": "-"},
    "xlstm": {"v_head_dim": "-"},
    "zaya": {"num_experts_per_tok": 1},
}
_LARGE = ("blt", "git")  # whose parts have fields of their own


class NotBuilt(Exception):
    """This family's configuration wants more than small numbers."""


def build_family(folder: Path, model_type: str, **fields: Any) -> Path:
    """Write a random float32 checkpoint; other `fields` of its config win.

    Raises NotBuilt if that takes more than is known here.
    """
    try:
        config = family_config(model_type, **fields)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    except Exception as error:  # of whichever validator
        line = (str(error).splitlines() or [""])[0]
        raise NotBuilt(f"{model_type}: {type(error).__name__}: {line}") from None
    randomize_biases_and_norms(model)
    output = model.get_output_embeddings()
    if output is not None:
        with torch.no_grad():
            output.weight[0].zero_()  # so that greedy answers end by length
    return save_tiny_model(folder, model)


def family_config(model_type: str, **fields: Any) -> PretrainedConfig:
    """The configuration of a family with small numbers, in its parts as well."""
    if model_type in _LARGE:
        raise ValueError("its parts are large")
    kind: Any = CONFIG_MAPPING[model_type]
    base = kind()
    text = base.get_text_config()
    if text is not base:
        parts: dict[str, Any] = {"text_config": _small(text, _FIELDS.get(text.model_type, {}))}
        for name in ("vision_config", "audio_config"):
            if getattr(base, name, None) is not None:
                parts[name] = {
                    key: value
                    for key, value in _TINY_VISION.items()
                    if hasattr(getattr(base, name), key)
                }
        return kind(**parts | fields)
    return kind(**_small(base, _FIELDS.get(model_type, {}) | fields))


def _small(config: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields for a config like this, but small. Random weights are larger than usual, too."""
    sizes: dict[str, Any] = _SIZES | {"initializer_range": 0.15}
    own = config.to_dict()
    if "qk_rope_head_dim" in own:
        sizes |= _LATENT
    small = {
        name: size
        for name, size in sizes.items()
        if _is_number(own.get(name)) or (name in _OPTIONAL and hasattr(type(config), name))
    }
    joined = small | _SPECIAL_IDS | fields
    return {name: value for name, value in joined.items() if value != "-"}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
