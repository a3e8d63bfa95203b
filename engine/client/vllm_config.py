"""What an engine says of itself, in the names that programs written for vLLM look for."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.ipc import Ready

# Of a checkpoint's generation_config.json, what SamplingParams can take up, under our names.
GENERATION_CONFIG_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is known of the served model."""

    model: str  # its folder
    served_model_name: str
    max_model_len: int
    vocab_size: int
    dtype: str

    def get_vocab_size(self) -> int:
        return self.vocab_size

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """The sampling defaults that the checkpoint recommends, as `SamplingParams` names them."""
        try:
            config = json.loads((Path(self.model) / "generation_config.json").read_text())
        except (OSError, ValueError):
            return {}
        found = {ours: config.get(theirs) for theirs, ours in GENERATION_CONFIG_NAMES.items()}
        if config.get("do_sample") is False:
            found["temperature"] = 0.0
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache."""

    block_size: int  # tokens
    num_gpu_blocks: int  # on the device, whether a GPU or not
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What bounds a step, and who comes first."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int
    policy: str  # fcfs, priority
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    enable_chunked_prefill: bool = True


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """One process on one device."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    world_size: int = 1


@dataclass(frozen=True, slots=True)
class DecodingConfig:
    """Structured output: there is none."""

    backend: str | None = None


@dataclass(frozen=True, slots=True)
class LoRAConfig:
    """Adapters: how many there may be, and how large."""

    max_lora_rank: int
    max_loras: int  # different ones at a time, of running requests
    max_cpu_loras: int  # in memory
    lora_dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """All of it."""

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    decoding_config: DecodingConfig
    device: str
    lora_config: LoRAConfig | None = None


def describe(ready: Ready, model: str, served_model_name: str) -> VllmConfig:
    """The configuration of the core that answered with `ready`; `model` is its folder."""
    config = ready.config
    return VllmConfig(
        model_config=ModelConfig(
            model=model,
            served_model_name=served_model_name,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            dtype=ready.dtype,
        ),
        cache_config=CacheConfig(
            block_size=ready.block_size,
            num_gpu_blocks=ready.num_blocks,
            enable_prefix_caching=config.enable_prefix_caching,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=ready.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=ready.max_model_len,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            policy=config.scheduling_policy,
            max_num_queued_reqs=config.max_num_queued_reqs,
            max_num_queued_tokens=config.max_num_queued_tokens,
        ),
        parallel_config=ParallelConfig(),
        decoding_config=DecodingConfig(),
        device=config.device,
        lora_config=_describe_lora(config) if config.enable_lora else None,
    )


def _describe_lora(config: EngineConfig) -> LoRAConfig:
    return LoRAConfig(
        max_lora_rank=config.max_lora_rank,
        max_loras=config.max_loras,
        max_cpu_loras=config.max_cpu_loras or config.max_loras,
    )
