"""Every model of language that transformers knows: the same text as there, or one true line.

Of those that also take pictures or sounds, what transformers' whole model says to text alone.

The wide run is slow; a few families that have been wrong, or refused for nothing, are always tried.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from engine.errors import UnsupportedModelError
from engine.folder.caches.families import RUNNING
from tests.engine.helpers.family_models import NotBuilt, build_family, family_config
from tests.engine.helpers.greedy_oracle import NUM_TOKENS, Reference, make_prompts
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.built_kernels import needs_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

MAX_DIFFERENCE = 5e-5  # of logits; some families multiply them
# Whose configurations want more than small numbers, or parts that are not installed.
NOT_BUILT = frozenset(
    """
    blt diffusion_gemma dots3_note evolla fast_vlm florence2 fun_asr_nano gemma3n gemma4_assistant
    gemma4_unified_assistant git glm5_next granite4_vision inkling2 inkling_mm_model
    kyutai_speech_to_text muse_glimmer muse_spark musicgen musicgen_melody nemo_speechlm
    nemotron_h_omni perception_lm qwen2_5_omni qwen3_omni_moe qwen4_exp qwen4_exp_text t5gemma2
    vibevoice_asr zamba zamba2
    """.split()
)
ALWAYS_TRIED = (
    *("ctrl", "gemma4", "gemma4_unified", "got_ocr2", "longcat_flash", "moss_transcribe_diarize"),
    *("phi4_multimodal", "mpt", "bert", "blenderbot-small", "diffllama"),
    *("aria", "emu3", "gemma3", "glm4v", "idefics3", "internvl", "kimi_k25", "kosmos-2.5"),
    *("llava", "llava_next", "llava_onevision", "mistral3", "mllama", "paligemma", "pi0"),
    *("qwen2_5_vl", "qwen2_audio", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "smolvlm"),
)
_FULL = ["full_attention"] * 4
_ROPE = {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
_LONG: dict[str, Any] = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
_GEMMA4_TEXT = family_config("gemma4_text").to_dict() | {"attention_k_eq_v": True}
_GEMMA4_TOWER: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 6, "head_dim": 16},
    **{"num_attention_heads": 2, "num_key_value_heads": 2},
}
VARIANTS: dict[str, tuple[str, dict[str, Any], str | None]] = {  # fields, and why it is refused
    "gemma3 in both directions": (
        "gemma3_text",
        {"use_bidirectional_attention": True},
        "both directions",
    ),
    "llama that is not causal": ("llama", {"is_causal": False}, "both directions"),
    "bert as a decoder": ("bert", {"is_decoder": True}, None),
    "deepseek_v32 without its index": (
        "deepseek_v32",
        {"layer_types": _FULL},
        "needs a mask, a cache or an input .* DeepseekV32",
    ),
    "llama4 without chunks": ("llama4_text", {"layer_types": _FULL}, "does not keep to the pos"),
    "llama4 without chunks and temperature": (
        "llama4_text",
        {"layer_types": _FULL, "attn_temperature_tuning": False},
        None,
    ),
    "qwen3_next with attention alone": ("qwen3_next", {"layer_types": _FULL}, None),
    "granitemoehybrid with attention alone": (
        "granitemoehybrid",
        {"layer_types": _FULL},
        None,
    ),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, None),
    "llama with dynamic rope": (
        "llama",
        {"rope_parameters": _ROPE | {"rope_type": "dynamic"}},
        None,
    ),
    "phi3 with longrope": (
        "phi3",
        {"rope_parameters": _ROPE | _LONG | {"rope_type": "longrope"}},
        None,
    ),
    "gemma4 with a tower, and values that are keys": (
        "gemma4",
        {"vision_config": _GEMMA4_TOWER, "text_config": _GEMMA4_TEXT},
        None,
    ),
    "gemma4 with shared keys": (
        "gemma4",
        {"text_config": _GEMMA4_TEXT | {"num_kv_shared_layers": 2}},
        "shares keys and values",
    ),
    "llava with a mistral": (
        "llava",
        {"text_config": family_config("mistral").to_dict()},
        None,
    ),
    "llava with a gemma": (
        "llava",
        {"text_config": family_config("gemma").to_dict()},
        None,
    ),
    "mistral3 with a ministral": (
        "mistral3",
        {"text_config": family_config("ministral3").to_dict()},
        None,
    ),
    "qwen3 with yarn": ("qwen3", {"rope_parameters": _ROPE | {"rope_type": "yarn"}}, None),
}


def check_equal(folder: Path, **settings: Any) -> None:
    """Chunks of five tokens beside decodes; the reference is transformers without a cache."""
    engine = SteppedEngine(folder, keeps_logits=True, max_num_batched_tokens=5, **settings)
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt)
    engine.run()
    reference = Reference(folder)
    for number, prompt in enumerate(prompts):
        name = str(number)
        difference = reference.check(prompt, engine.tokens[name], engine.logits[name])
        assert difference <= MAX_DIFFERENCE


def check_family(folder: Path, model_type: str) -> None:
    try:
        build_family(folder, model_type)
    except NotBuilt as reason:
        assert model_type in NOT_BUILT, reason
        pytest.skip(str(reason))
    if model_type in RUNNING:
        check_equal(folder)
        return
    with pytest.raises(UnsupportedModelError) as error:
        SteppedEngine(folder)
    print(error.value)  # pytest -rP
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("model_type", ALWAYS_TRIED)
def test_a_family_that_loads_gives_the_text_of_transformers(
    model_type: str, tmp_path: Path
) -> None:
    check_family(tmp_path / model_type, model_type)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type",
    sorted(
        {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, *RUNNING}
        - {*ALWAYS_TRIED}
    ),
)
def test_every_family_gives_the_text_of_transformers_or_is_refused_in_one_line(
    model_type: str, tmp_path: Path
) -> None:
    check_family(tmp_path / model_type, model_type)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_config_changes_of_a_family_is_seen(name: str, tmp_path: Path) -> None:
    model_type, fields, refusal = VARIANTS[name]
    build_family(tmp_path / model_type, model_type, **fields)
    if refusal is None:
        check_equal(tmp_path / model_type)
        return
    with pytest.raises(UnsupportedModelError, match=refusal):
        SteppedEngine(tmp_path / model_type)


@needs_kernels
def test_a_router_that_reads_a_weight_in_8_bits_reads_numbers(tmp_path: Path) -> None:
    folder = build_family(tmp_path / "longcat_flash", "longcat_flash")
    prompt = make_prompts()[2]
    logits = []
    for quantization in ("int8", "int8", None):
        engine = SteppedEngine(folder, keeps_logits=True, quantization=quantization)
        engine.add("a", prompt, max_tokens=1)
        engine.run()
        logits.append(engine.logits["a"][0])
    assert torch.equal(logits[0], logits[1])
    assert (logits[0] - logits[2]).std() < 0.3 * logits[2].std()


@pytest.mark.parametrize("model_type", ["longcat_flash", "gemma4", "gemma4_unified"])
def test_an_answer_is_that_of_generate(model_type: str, tmp_path: Path) -> None:
    folder = build_family(tmp_path / model_type, model_type)
    engine = SteppedEngine(folder)
    prompts = make_prompts()
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt)
    engine.run()
    model = AutoModelForCausalLM.from_pretrained(folder)
    generate: Callable[..., torch.Tensor] = model.generate
    for number, prompt in enumerate(prompts):
        expected = generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )
        assert engine.tokens[str(number)] == expected[0, len(prompt) :].tolist()
