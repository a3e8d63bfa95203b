"""How much memory a model will need, by the headers of its files: nothing of them is loaded for it.

An estimate, by what a core was seen to take (`tests/server/engines/native/test_forecast.py`):
weights in the numbers that are asked for, keys and values of one conversation, and a process.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.core.models.checkpoint import Checkpoint, check_folder
from engine.core.models.gguf.headers import GgufTensor
from engine.core.runner import system_memory
from engine.folder.caches.checkpoint_description import describe_checkpoint
from engine.folder.caches.found import Found
from engine.folder.caches.gguf_description import describe_gguf
from engine.folder.gguf.link import read_link
from engine.folder.model_config import num_layers, text_config
from engine.folder.quantized.layouts import Integers, Mxfp4, QuantizedTensor
from engine.folder.weight_headers import StoredTensor
from server.config.models import ModelFacts
from server.config.settings import Settings

PROCESS_BYTES = 300 << 20  # of a core, without weights: Python, torch and what a step writes to
GENERAL_BYTES = 250 << 20  # transformers besides, for what the fused decoder does not compute
CONVERSATION_TOKENS = 4096  # for whose keys and values there must be room, at the least
FUSED = frozenset(("llama", "mistral", "qwen2", "qwen3"))
FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Of a number that is rounded, with its share of a scale.
QUANTIZED_BYTES = {"int8": 1.02, "int4": 0.55}
MXFP4_BYTES = 6.5 / 8  # as which its numbers are packed
# In the names of what takes pictures and sounds, or speaks: none of it is loaded.
BESIDES_TEXT = re.compile(r"vision|visual|audio|projector|multi_modal|talker|(token|code)2wav")
NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "avx10")


def read_facts(settings: Settings, folder: Path) -> ModelFacts:
    """What the files in `folder` say. Raises `UnsupportedModelError`, as loading them would."""
    checkpoint = check_folder(folder)
    link = read_link(folder)
    size = sum(file.stat().st_size for file in checkpoint.weight_files)
    if link is not None:
        about = describe_gguf(Found(folder.name, folder, gguf=link.files), size)
    else:
        names = {path.name: path for path in folder.iterdir() if path.is_file()}
        about = describe_checkpoint(Found(folder.name, folder, folder=names), size)
    return ModelFacts(
        format=about.format,
        context_length=settings.max_model_len or about.context_length,
        size_bytes=size,
        needs_bytes=None if settings.device == "cuda" else needed_bytes(settings, checkpoint),
        smaller=_with_other_options(settings, checkpoint),
    )


def _with_other_options(settings: Settings, checkpoint: Checkpoint) -> dict[str, int]:
    found = {}
    for quantize in QUANTIZED_BYTES if settings.quantize is None else ():
        other = settings.model_copy(update={"quantize": quantize})
        found[f"--quantize {quantize}"] = needed_bytes(other, checkpoint)
    return found


def needed_bytes(settings: Settings, checkpoint: Checkpoint) -> int:
    """Of memory, to serve a model on the CPU."""
    config, text = checkpoint.config, text_config(checkpoint.config)
    is_plain = config.get("model_type") in FUSED
    process = PROCESS_BYTES if is_plain else PROCESS_BYTES + GENERAL_BYTES
    has_others = text is not config
    weights = sum(
        _tensor_bytes(settings, config, name, tensor, is_fused=text.get("model_type") in FUSED)
        for name, tensor in checkpoint.tensors.items()
        if not (has_others and BESIDES_TEXT.search(name))
    )
    return process + int(weights) + cache_bytes(settings, config)


def cache_bytes(settings: Settings, config: Mapping[str, Any]) -> int:
    """Of the smallest KV cache that is of use, or of the one that is asked for."""
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    text, layers = text_config(config), num_layers(config)
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads")
    width, hidden = text.get("head_dim"), text.get("hidden_size")
    if width is None and hidden is not None and text.get("num_attention_heads"):
        width = hidden // text["num_attention_heads"]
    if layers is None or not isinstance(heads, int) or not isinstance(width, int):
        return 0
    context = settings.max_model_len or text.get("max_position_embeddings")
    if not isinstance(context, int):
        context = CONVERSATION_TOKENS
    number = 1 if settings.kv_cache_dtype == "int8" else 4 if settings.dtype == "float32" else 2
    return 2 * layers[1] * heads * width * number * min(context, CONVERSATION_TOKENS)


def free_bytes(settings: Settings) -> int | None:
    """For further models, with a reserve for all others; None on a GPU."""
    if settings.device == "cuda":
        return None
    try:
        found = system_memory.available()
    except OSError:
        return None
    reserve = min(system_memory.RESERVE_BYTES, int(found * system_memory.RESERVE_SHARE))
    return found - reserve


def own_bytes(pid: int) -> int:
    """What a process has taken for itself; 0 of one that is gone."""
    try:
        return system_memory.own(pid=pid)
    except (OSError, KeyError):
        return 0


def _tensor_bytes(
    settings: Settings,
    config: Mapping[str, Any],
    name: str,
    tensor: StoredTensor,
    *,
    is_fused: bool,
) -> float:
    """What one tensor of the files takes in memory."""
    numbers = 1
    for size in tensor.shape:
        numbers *= size
    is_table = "embed" in name and not config.get("tie_word_embeddings", False)
    if settings.quantize is not None and len(tensor.shape) > 1 and not is_table:
        return numbers * QUANTIZED_BYTES[settings.quantize]
    if isinstance(tensor, QuantizedTensor) and settings.dtype == "auto":
        if isinstance(tensor.layout, Integers):
            return numbers * (tensor.layout.bits + 1) / 8  # with its share of scales and zeros
        if isinstance(tensor.layout, Mxfp4):
            return numbers * MXFP4_BYTES
    stored = tensor.dtype
    if isinstance(tensor, QuantizedTensor):
        stored = "F32" if "float32" in map(config.get, ("dtype", "torch_dtype")) else "BF16"
    if isinstance(tensor, GgufTensor) and tensor.dtype not in FLOATS and settings.dtype == "auto":
        is_layer = len(tensor.shape) > 1 and "embed" not in name  # or its experts
        if is_fused or is_layer:
            return tensor.num_bytes  # blocks are computed as they are
    return numbers * _float_bytes(settings, stored, is_fused=is_fused)


def _float_bytes(settings: Settings, stored: str, *, is_fused: bool) -> float:
    if settings.dtype in DTYPE_BYTES:
        return DTYPE_BYTES[settings.dtype]
    if is_fused and stored != "F16":
        return 4.0 if stored in ("F32", "F64") else 2.0
    return 2.0 if _has_native_bfloat16() else 4.0


def _has_native_bfloat16() -> bool:
    try:
        flags = (system_memory.PROC / "cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in NATIVE_BFLOAT16)
