"""`AbsentFeatures`: what vLLM's `AsyncEngineArgs` knows and this engine does not have.

Programs written for vLLM often spell out that they do not want something. So each of its arguments
is known here, and accepted where its value asks for nothing that is missing; any other value raises
`NotImplementedError` with the argument's name.
"""

from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields
from typing import Any

from engine.client.vllm_args import VllmArgs


@dataclass(kw_only=True)
class AbsentFeatures(VllmArgs):
    """Besides, arguments of earlier versions, each with the value that asks for nothing."""

    enable_lora_bias: Any = False
    lora_extra_vocab_size: Any = 256
    enable_prompt_adapter: Any = False
    qlora_adapter_name_or_path: Any = None
    disable_mm_preprocessor_cache: Any = False
    task: Any = "auto"
    rope_scaling: Any = None
    rope_theta: Any = None
    override_pooler_config: Any = None
    override_neuron_config: Any = None
    logits_processor_pattern: Any = None
    guided_decoding_backend: Any = "auto"
    speculative_model: Any = None
    num_speculative_tokens: Any = None
    num_lookahead_slots: Any = 0
    calculate_kv_scales: Any = False
    max_num_partial_prefills: Any = 1
    max_long_partial_prefills: Any = 1
    num_scheduler_steps: Any = 1
    scheduler_delay_factor: Any = 0.0
    preemption_mode: Any = None
    cuda_graph_sizes: Any = None
    max_seq_len_to_capture: Any = None
    max_context_len_to_capture: Any = None
    multi_step_stream_outputs: Any = True
    swap_space: Any = 4
    tokenizer_pool_size: Any = 0
    use_v2_block_manager: Any = True

    def refuse_absent(self, present: Collection[str]) -> None:
        """Raise `NotImplementedError` for what asks for something that is missing.

        `present` are the names of what is here.
        """
        for field in fields(AbsentFeatures):
            value = getattr(self, field.name)
            if field.name in present or field.name in WITHOUT_MEANING:
                continue
            default = field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            if _asks_for_nothing(value, default) or value in HARMLESS.get(field.name, ()):
                continue
            raise NotImplementedError(f"{field.name}={value!r} is not implemented")


def _asks_for_nothing(value: object, default: object) -> bool:
    """True for the default, and for what takes away where the default has nothing either."""
    if value is None or (type(value) is type(default) and value == default):
        return True
    if isinstance(value, int | float) and isinstance(default, int | float):
        return value == default  # 0 and 0.0, but False is not what is True by default
    return value is False or value in ("", {}, [], set())


HARMLESS: dict[str, tuple[object, ...]] = {
    "task": ("generate",),
    "convert": ("none",),
    "config_format": ("hf",),
    "enable_sleep_mode": (True,),  # every engine can sleep
    "distributed_executor_backend": ("mp", "uni"),  # one process is all that either would be
    "data_parallel_rank": (0,),
    "data_parallel_size_local": (1,),
    "num_speculative_tokens": (0,),
    "spec_tokens": (0,),
}
WITHOUT_MEANING = frozenset(  # there is nothing for any of their values to act on
    (
        # of adapters, which are computed in float32 and add no words
        "lora_dtype",
        "lora_extra_vocab_size",
        # of inputs that are no text, which are refused by the name that asks
        "mm_hasher_algorithm",
        "mm_processor_cache_gb",
        "mm_processor_cache_type",
        "mm_shm_cache_max_object_size_mb",
        # how fast something is that is not here, or is fast in another way
        "compilation_config",
        "cuda_graph_sizes",
        "cudagraph_capture_sizes",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "enable_flashinfer_autotune",
        "max_context_len_to_capture",
        "max_cudagraph_capture_size",
        "max_parallel_loading_workers",
        "max_seq_len_to_capture",
        "multi_step_stream_outputs",
        "optimization_level",
        "performance_mode",
        "renderer_num_workers",
        "safetensors_load_strategy",
        "safetensors_prefetch_block_size",
        "safetensors_prefetch_num_threads",
        "swap_space",
        "tokenizer_pool_size",
        "use_v2_block_manager",
        # what is shown
        "jit_monitor_mode",
        "jit_monitor_verbose",
        "show_hidden_metrics_for_version",
        "use_tqdm_on_load",
        # by what means memory is given back
        "sleep_mode_backend",
        "sleep_mode_offload_cudagraph",
    )
)
