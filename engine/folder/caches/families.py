"""Which types of `config.json` run, without a look into transformers.

`tests/engine/core/models/test_families.py` compares each of them with transformers.
Loading decides: here is only what the list of models says before.
"""

from collections.abc import Mapping
from typing import Any

from engine.folder.model_config import own_code_problem, text_config

RUNNING = frozenset(
    """
    afmoe apertus arcee aria aria_text axk1 aya_vision beam biogpt bitnet chameleon cohere
    cohere2 cohere2_moe cohere2_vision cohere_compass cohere_compass_text cosmos3_edge
    cosmos3_omni ctrl cwm dbrx deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_vl
    deepseek_vl_hybrid dots1 emu3 ernie4_5 ernie4_5_moe ernie4_5_vl_moe exaone4 exaone4_5
    exaone_moe flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text
    gemma4_unified gemma4_unified_text glm glm4 glm46v glm4_moe glm4_moe_lite glm4v glm4v_moe
    glm_ocr glmasr glmga got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_oss granite
    granite_docling granite_speech granite_speech_plus granite_swa granitemoe granitemoe_swa
    granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl hy_v3 hyperclovax
    hyperclovax_vision_v2 idefics2 idefics3 internlm3 internvl iquestcoder jais2 janus jetmoe
    kimi_k25 kolibri1 laguna lighton_ocr llama llava llava_next llava_next_video llava_onevision
    longcat_flash mellum mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl minimax_m3_vl_text
    ministral ministral3 mistral mistral3 mistral4 mixtral mllama modernbert-decoder molmo2
    moshi moss_transcribe_diarize nanochat nemotron olmo olmo2 olmo3 olmoe opt ovis2
    paddleocr_vl persimmon phi phi3 phi4_multimodal phimoe pp_chart2table qianfan_ocr qwen2
    qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr
    qwen3_moe qwen3_omni_moe qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe seed_oss smollm3
    smolvlm solar_open stablelm starcoder2 step3p7 vaultgemma video_llama_3 video_llava vipllava
    voxtral whisper youtu
    """.split()
)
_ATTENTION_TYPES = {"full_attention", "sliding_attention"}


def family_problem(config: Mapping[str, Any]) -> str | None:
    """Why a config.json, which has been checked, is of no model that runs; None: it is of one."""
    family = config.get("model_type")
    if family is None:
        return "its config.json names no model_type"
    if family not in RUNNING:
        if problem := own_code_problem(config):
            return problem
        return f"{family} is no family of language models that is known to run"
    text = text_config(config)
    if text.get("is_encoder_decoder"):
        return f"{family} is an encoder-decoder"
    if others := set(text.get("layer_types") or ()) - _ATTENTION_TYPES:
        return f"{family} has layers without paged attention: {sorted(others)}"
    if text.get("num_kv_shared_layers"):
        return f"{family} shares keys and values between layers"
    if text.get("alibi"):
        return f"{family} uses alibi positions"
    reads_all = text.get("use_bidirectional_attention") in (True, "all")
    if reads_all or text.get("is_causal", True) is False:
        return f"{family} reads a text in both directions, so it continues none"
    return None
