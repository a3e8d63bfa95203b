"""Each architecture, written as llama.cpp's converter does, answers as transformers' own model."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.core.models.checkpoint import check_folder
from engine.core.models.modules.linear import PackedLinear
from engine.core.models.stored_weights import read_weights
from engine.folder.gguf.derived import derive_folder
from engine.folder.gguf.head import read_head
from tests.engine.core.models.gguf.test_answers import check_equal
from tests.engine.helpers.family_models import build_family
from tests.engine.helpers.gguf.gguf_files import write_gguf
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

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


ALWAYS = {"gemma3", "gpt-oss", "mixtral", "olmo2", "phi3", "qwen3moe"}  # others in the slow part


@needs_kernels
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ALWAYS else pytest.mark.slow) for n in CASES]
)
def test_greedy_answers_equal_transformers(tmp_path: Path, name: str) -> None:
    family, fields = CASES[name]
    original = build_family(tmp_path / "original", family, **fields)
    file = write_gguf(original, tmp_path / "tiny.gguf")
    check_equal(file, original)


def test_mistral_of_newer_files_is_one_of_the_fused_families(tmp_path: Path) -> None:
    fields = {"sliding_window": None, "rope_parameters": YARN}
    original = build_family(tmp_path / "original", "mistral", **fields)
    file = write_gguf(original, tmp_path / "tiny.gguf", arch=gguf.MODEL_ARCH.MISTRAL3)
    assert check_equal(file, original).runner.loaded.fused is not None


def test_experts_of_gpt_oss_may_be_of_four_bits(tmp_path: Path) -> None:
    """With numbers that the blocks hold exactly: each has the largest that a scale allows."""
    original = build_family(tmp_path / "original", "gpt_oss")
    weights = load_file(original / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name, weight in weights.items():
        if name.endswith(("gate_up_proj", "down_proj")):  # [experts, inputs, outputs]
            codes = torch.randint(len(E2M1), weight.shape, generator=generator)
            signs = torch.randint(2, weight.shape, generator=generator) * 2 - 1
            numbers = torch.tensor(E2M1)[codes] * signs
            numbers[:, ::32] = E2M1[-1]
            weights[name] = numbers / 16
    save_file(weights, original / "model.safetensors", metadata={"format": "pt"})
    file = write_gguf(original, tmp_path / "tiny.gguf", others={".experts.": "MXFP4"})
    types = {name: info.type.name for name, info in read_head(file).tensors.items()}
    assert types["blk.0.ffn_gate_exps.weight"] == types["blk.3.ffn_down_exps.weight"] == "MXFP4"
    check_equal(file, original)


@needs_kernels
@pytest.mark.parametrize(
    ("family", "others", "format"),
    [
        ("gpt_oss", {".experts.": "MXFP4"}, "int6"),
        ("mixtral", {".w1.": "Q4_0", ".w2.": "Q4_0", ".w3.": "Q5_1"}, "int6"),
        ("qwen3_moe", {".experts.": "Q4_1"}, "int4_parts"),
        ("qwen3_moe", {".experts.": "Q8_0"}, "int8_parts"),
        ("qwen3_moe", {".up_proj": "F16", ".experts.": "Q8_0"}, None),
    ],
)
def test_experts_keep_the_numbers_of_the_file(
    tmp_path: Path, family: str, others: dict[str, str], format: str | None
) -> None:
    """`format` is that of gates and ups, which are one weight; None: they are floats."""
    original = build_family(tmp_path / "original", family)
    folder = derive_folder(write_gguf(original, tmp_path / "tiny.gguf", others=others))
    meant = dict(read_weights(check_folder(folder), torch.float32))
    modules = SteppedEngine(folder).runner.loaded.model.named_modules()
    experts = {name: module for name, module in modules if name.endswith("experts")}
    assert experts
    for name, module in experts.items():
        both = getattr(module, "gate_up_proj_packed", [])
        assert {layer.format for layer in both} == ({format} if format else set())
        for own_name in ("gate_up_proj", "down_proj") if format else ("down_proj",):
            expected = meant[f"{name}.{own_name}"]
            layers = getattr(module, f"{own_name}_packed")
            assert len(layers) == len(expected)
            for layer, weight in zip(layers, expected, strict=True):
                found = (layer.weight + 0).float()
                wanted = (weight.T if family == "gpt_oss" else weight).to(layer.weight.dtype)
                torch.testing.assert_close(found, wanted.float(), rtol=1e-2, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_moe", "glm4"])
def test_weights_of_eight_bits_are_those_of_the_file(tmp_path: Path, family: str) -> None:
    original = build_family(tmp_path / "original", family)
    file = write_gguf(original, tmp_path / "tiny.gguf", "Q8_0")
    folder = derive_folder(file)
    whole = AutoModelForCausalLM.from_pretrained(original).state_dict()
    found = dict(read_weights(check_folder(folder), torch.float32))
    assert found.keys() == whole.keys() - ({"lm_head.weight"} - found.keys())
    for name, weight in found.items():
        allowed = float(whole[name].abs().max()) / 200
        torch.testing.assert_close(weight, whole[name], rtol=0, atol=allowed)
    engine = SteppedEngine(folder)
    engine.add("0", [5, 6, 7], max_tokens=4)
    engine.run()
    assert len(engine.tokens["0"]) == 4
    layers = {
        name.rpartition(".")[2]: module.format
        for name, module in engine.runner.loaded.model.named_modules()
        if isinstance(module, PackedLinear)
    }
    assert layers["o_proj"] == "int8_parts"
