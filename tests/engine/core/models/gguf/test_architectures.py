"""Each architecture, written as llama.cpp's converter does, answers as transformers' own model."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.core.models.gguf.test_answers import check_equal
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.gguf.gguf_files import write_gguf

ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 12_345.0}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 4.0, "beta_fast": 32.0},
    **{"beta_slow": 1.0, "original_max_position_embeddings": 128},
}
MINISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7, "llama_4_scaling_beta": 0.2}
GEMMA3 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
}
LONG = {
    **{"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75},
    **{"short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5], "long_factor": [4.0] * 6},
}
SCALES = {
    **{"attention_multiplier": 0.3, "embedding_multiplier": 3.0},
    **{"residual_multiplier": 0.4, "logits_scaling": 2.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("arcee", {}),
    "cohere": ("cohere", {"logit_scale": 0.7}),
    "cohere with norms of heads": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "rope_parameters": GEMMA3},
    ),
    "glm4": ("glm4", {"attention_bias": False}),
    "glm4 with biases": ("glm4", {}),
    "gpt-oss": ("gpt_oss", {"rope_parameters": YARN | {"truncate": False}}),
    "granite": ("granite", SCALES),
    "granitemoe": ("granitemoe", SCALES),
    "ministral3": ("ministral3", {"rope_parameters": MINISTRAL}),
    "mixtral": ("mixtral", {"rope_parameters": ROPE}),
    "nemotron": ("nemotron", {}),
    "olmo2": ("olmo2", {}),
    "olmoe": ("olmoe", {}),
    "phi3": ("phi3", {}),
    "phi3 with a window": ("phi3", {"sliding_window": 6}),
    "phi3 with long texts": (
        "phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 128},
    ),
    "qwen2moe": ("qwen2_moe", {}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "smollm3": ("smollm3", {}),
    "stablelm": ("stablelm", {}),
    "stablelm in parallel": (
        "stablelm",
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "starcoder2": ("starcoder2", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_greedy_answers_equal_transformers(tmp_path: Path, name: str) -> None:
    family, fields = CASES[name]
    original = build_family(tmp_path / "original", family, **fields)
    file = write_gguf(original, tmp_path / "tiny.gguf")
    check_equal(file, original)
