"""How large the KV cache, sequences and steps are, where nobody says it."""

import gc
import logging
from typing import Any

import msgspec
import torch

from engine.config import EngineConfig
from engine.core.models.loader import LoadedModel
from engine.core.runner import system_memory
from engine.errors import UnsupportedModelError, refuse

logger = logging.getLogger(__name__)

CACHE_MEMORY_SHARE = 0.25  # of the memory that is available when the core starts
MAX_CACHE_BYTES = 4 << 30  # unless `kv_cache_memory_bytes` asks for more
MAX_CACHE_TOKENS = 131_072  # likewise: the prefix cache fills whatever it is given, over time
MAX_STEP_TOKENS = {"cpu": 512, "cuda": 8192}  # unless `max_num_batched_tokens` says otherwise
STEP_MEMORY_SHARE = 0.05  # of a GPU's memory, at least, for what lives within a step


def resolve_sizes(config: EngineConfig, loaded: LoadedModel) -> EngineConfig:
    """Decide the sizes of cache, sequences and steps.

    The context is the model's, or what the cache holds if that is less. `ValidationError` if more
    was asked for than either: a prompt that is refused later would be a riddle.
    """
    asked = config.max_model_len
    if asked is not None and asked > loaded.max_positions:
        limit = f"must be at most {loaded.max_positions}, the model's context"
        raise refuse("max_model_len", asked, limit)
    max_model_len = asked or loaded.max_positions
    block_size = loaded.block_size
    per_sequence = -(-max_model_len // block_size)
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = per_sequence * config.max_num_seqs
        memory = config.kv_cache_memory_bytes
        if memory is None:
            if loaded.device.type == "cuda":
                memory = _gpu_memory(config, loaded)
            else:
                num_blocks = min(num_blocks, max(per_sequence, MAX_CACHE_TOKENS // block_size))
                memory = min(int(system_memory.available() * CACHE_MEMORY_SHARE), MAX_CACHE_BYTES)
        block_bytes = block_size * cache_bytes_per_token(loaded)
        num_blocks = min(num_blocks, memory // block_bytes)
    if num_blocks < 1:
        raise UnsupportedModelError("there is no memory for a single block of the KV cache")
    max_model_len = min(max_model_len, num_blocks * block_size)
    if asked is not None and asked > max_model_len:
        limit = f"must be at most {max_model_len}, which is all that the KV cache holds"
        raise refuse("max_model_len", asked, f"{limit} (kv_cache_memory_bytes is its size)")
    logger.info(
        "KV cache: %d blocks of %d tokens; context %d", num_blocks, block_size, max_model_len
    )
    return msgspec.structs.replace(
        config,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens or MAX_STEP_TOKENS[loaded.device.type],
    )


def _gpu_memory(config: EngineConfig, loaded: LoadedModel) -> int:
    """Bytes for the cache: what may be used, without what is, and what a step needs besides."""
    gc.collect()
    torch.cuda.empty_cache()  # of what was put together while loading, torch keeps the parts' room
    free, total = torch.cuda.mem_get_info(loaded.device)
    of_step = max(int(total * STEP_MEMORY_SHARE), step_bytes(config, loaded))
    return max(0, int(total * config.gpu_memory_utilization) - of_step - (total - free))


def step_bytes(config: EngineConfig, loaded: LoadedModel) -> int:
    """An estimate, rather too much, of what lives within the largest step on a GPU.

    For each row what is between the products of one layer, and for each sequence its logits: as
    they come, as float32, and once more where they are edited.
    """
    config_of_all: Any = loaded.model.config
    model = config_of_all.get_text_config()  # of a checkpoint that has other parts besides
    hidden: int = model.hidden_size
    gated = getattr(model, "intermediate_size", None) or 4 * hidden
    if not isinstance(gated, int):  # one for each layer
        gated = max(gated)
    num_rows = config.max_num_batched_tokens or MAX_STEP_TOKENS["cuda"]
    of_rows = num_rows * (8 * hidden + 4 * gated) * loaded.dtype.itemsize
    of_logits = config.max_num_seqs * loaded.vocab_size * (loaded.dtype.itemsize + 4 + 4)
    return of_rows + of_logits


def cache_bytes_per_token(loaded: LoadedModel) -> int:
    """In all layers together."""
    if loaded.fused is not None:
        return loaded.fused.cache_bytes_per_token
    shapes = [layer.shapes[0] for layer in loaded.layers]
    return sum(
        shape.num_kv_heads * (shape.head_dim + shape.value_head_dim) * shape.dtype.itemsize
        for shape in shapes
    )
