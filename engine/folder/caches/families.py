"""Which types of `config.json` run, without a look into transformers.

`tests/engine/core/models/test_families.py` compares each of them with transformers.
Loading decides: here is only what the list of models says before.
"""

from collections.abc import Mapping
from typing import Any

from engine.folder.model_config import text_config

RUNNING = frozenset(
    """
    afmoe apertus arcee aria_text axk1 beam biogpt bitnet cohere cohere2 cohere2_moe
    cohere_compass_text ctrl cwm dbrx deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4
    exaone_moe flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text
    gemma4_unified gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite got_ocr2 gpt-sw3 gpt2
    gpt_bigcode gpt_neox gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoeshared
    helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe
    kolibri1 laguna llama longcat_flash mellum mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text
    ministral ministral3 mistral mixtral modernbert-decoder moshi moss_transcribe_diarize nanochat
    nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe
    qwen3 qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma whisper youtu
    """.split()
)
_ATTENTION_TYPES = {"full_attention", "sliding_attention"}


def family_problem(config: Mapping[str, Any]) -> str | None:
    """Why a config.json, which has been checked, is of no model that runs; None: it is of one."""
    family = config.get("model_type")
    if family is None:
        return "its config.json names no model_type"
    if family not in RUNNING:
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
