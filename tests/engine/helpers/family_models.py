"""Tiny random checkpoints of nearly every language model that transformers knows.

A family's own configuration is taken, with its sizes, by any name, made small, in all its
parts; some need a word more, which stands in `_FIELDS`, `_PARTS` and `_WHOLES`.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

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
_DEFAULT_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
_HALF_ROPE = _DEFAULT_ROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
_THREE_POSITIONS = {"rope_parameters": _DEFAULT_ROPE | {"mrope_section": [2, 3, 3]}}
_HALF_THREE_POSITIONS = {"rope_parameters": _HALF_ROPE}
_TOWER: dict[str, int | list[int]] = {  # sizes of what is no text
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "conv_dim", "hidden_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "ffn_dim", "base_channels"), 32),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads"), 2),
    **dict.fromkeys(("depth", "encoder_layers", "decoder_layers", "num_blocks", "num_layers"), 2),
    **dict.fromkeys(("out_hidden_size", "output_dim", "max_position_embeddings"), 64),
    **dict.fromkeys(("vocab_size", "num_embeddings", "encoder_hidden_size"), 32),
    **dict.fromkeys(("image_size", "crop_size"), 28),
    **dict.fromkeys(("head_dim", "projection_dim", "num_position_embeddings"), 16),
    "patch_size": 14,
    "num_hidden_layers": 6,  # more than the text has
    "num_key_value_heads": 2,
    "num_queries": 4,
    "window_size": 2,
    "cross_attention_frequency": 1,
    "ext_pw_out_channel": 32,
    "nemo_conv_channels": 8,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0],
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
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"), _THREE_POSITIONS),
    **dict.fromkeys(("qwen3_vl_moe_text", "qwen2_5_omni_text"), _THREE_POSITIONS),
    **dict.fromkeys(("qwen3_omni_moe_text", "paddleocr_vl_text"), _THREE_POSITIONS),
    **dict.fromkeys(("cosmos3_edge_text",), _THREE_POSITIONS),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_ocr_text"), _HALF_THREE_POSITIONS),
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {kind: _DEFAULT_ROPE for kind in _MIXED},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_top_k": 2},
    },
    "deepseek_ocr2_text": {
        "topk_method": "greedy",
        "num_experts_per_tok": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [32, 32],
        "rope_parameters": _DEFAULT_ROPE | {"mrope_section": [3, 3, 2]},
    },
    "exaone4": {"layer_types": _MIXED},
    "falcon": {"head_dim": "-"},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": _MIXED},
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": NUM_LAYERS},
    "hunyuan_vl_text": {
        "rope_parameters": {
            **{"rope_type": "xdrope", "rope_theta": 10_000.0, "xdrope_section": [2, 2, 2, 2]},
            **{"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0},
            **{"mscale": 1.0, "mscale_all_dim": 1.0},
        }
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "longcat_flash": {"num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "nemotron": {"head_dim": 16},
    "phi4_multimodal": {"eos_token_id": [0]},  # it takes 0 for none, and has its own beyond ours
    "prophetnet": {"num_hidden_layers": "-", "num_decoder_layers": 4, "num_encoder_layers": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "step3p5": {"layer_types": _FULL, "sliding_window": 6},
    "xlnet": {"max_position_embeddings": "-"},
    "xlstm": {"v_head_dim": "-"},
    "zaya": {"num_experts_per_tok": 1},
}
# The same of other parts than the text, and of the whole.
_PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "fun_asr_nano": {"adaptor_config": {"hidden_size": 64}},
    "molmo2": {
        "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 64},
        "vision_config": {"image_size": [28, 28]},
    },
}
_TINY_CODES = {"embed_dim": 16, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1}
_WHOLES: dict[str, dict[str, Any]] = {
    "chameleon": {
        "vq_config": _TINY_CODES | {"num_embeddings": 8, "latent_channels": 16, "resolution": 16},
        "vocabulary_map": {"<image>": 300, "IMGIMGA~": 301, "IMGIMGB~": 302},
    },
    "emu3": {
        "vq_config": _TINY_CODES
        | {"codebook_size": 8, "latent_channels": 4, "hidden_size": 32, "attn_resolutions": []},
        "vocabulary_map": {"<image>": 300, "<|visual token 000000|>": 301, "<|extra_200|>": 302},
    },
    "qwen2_5_omni_thinker": {"vision_start_token_id": 301},
    "qwen3_asr": {"eos_token_id": 0},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 301},
}
_LARGE = ("blt", "git")  # whose parts have fields of their own
MAX_NUMBERS = 20_000_000  # of a model in parts; others have a size that is none of those above


class NotBuilt(Exception):
    """This family's configuration wants more than small numbers."""


def build_family(folder: Path, model_type: str, **fields: Any) -> Path:
    """Write a random float32 checkpoint; other `fields` of its config win.

    Raises NotBuilt if that takes more than is known here.
    """
    try:
        _check_small(family_config(model_type, **fields))
        torch.manual_seed(0)
        config = family_config(model_type, **fields)
        model = auto_class(model_type).from_config(config).eval()
    except Exception as error:  # of whichever validator
        line = (str(error).splitlines() or [""])[0]
        raise NotBuilt(f"{model_type}: {type(error).__name__}: {line}") from None
    randomize_biases_and_norms(model)
    output = model.get_output_embeddings()
    if output is not None:
        with torch.no_grad():
            output.weight[0].zero_()  # so that greedy answers end by length
    return save_tiny_model(folder, model)


def auto_class(model_type: str) -> Any:
    """transformers' class for a whole checkpoint of this type."""
    if model_type in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM


def family_config(model_type: str, **fields: Any) -> PretrainedConfig:
    """The configuration of a family with small numbers, in its parts as well."""
    if model_type in _LARGE:
        raise ValueError("its parts are large")
    kind: Any = CONFIG_MAPPING[model_type]
    base = kind()
    text = base.get_text_config()
    own = _PARTS.get(model_type, {})
    parts: dict[str, Any] = {}
    for name in base.sub_configs:
        part = getattr(base, name, None)
        if part is not None and part is text:
            of_text = _small(text, _FIELDS.get(text.model_type, {}))
            parts[name] = {"model_type": text.model_type} | of_text
        elif part is not None:
            parts[name] = _small_tower(part) | own.get(name, {})
    if text is base:
        parts |= _small(base, _FIELDS.get(model_type, {}))
    return kind(**parts | _WHOLES.get(model_type, {}) | fields)


def _check_small(config: PretrainedConfig) -> None:
    if config.sub_configs.keys() <= {"text_config"}:
        return
    with torch.device("meta"):
        model = auto_class(config.model_type).from_config(config)
    num_numbers = sum(parameter.numel() for parameter in model.parameters())
    if num_numbers > MAX_NUMBERS:
        raise ValueError(f"{num_numbers} numbers are too many")


def _small_tower(config: Any) -> dict[str, Any]:
    """The same for what is no text, with the parts that it has in turn."""
    own = config.to_dict()
    small: dict[str, Any] = {
        name: size
        for name, size in _TOWER.items()
        if isinstance(own.get(name), type(size)) and not isinstance(own.get(name), bool)
    }
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            small[name] = _small_tower(part)
    return small


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
