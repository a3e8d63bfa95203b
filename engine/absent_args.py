"""`AbsentFeatures`: what vLLM's `AsyncEngineArgs` knows and this engine does not have.

Programs written for vLLM often spell out that they do not want something. So each of its arguments
is known here, and accepted where its value asks for nothing that is missing; any other value raises
`NotImplementedError` with the argument's name.
"""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(kw_only=True)
class AbsentFeatures:
    """Arguments without effect, each with the value that asks for nothing."""

    # adapters
    enable_lora: bool = False
    enable_lora_bias: bool = False
    fully_sharded_loras: bool = False
    max_loras: Any = 1
    max_lora_rank: Any = 16
    max_cpu_loras: Any = None
    lora_dtype: Any = "auto"
    lora_extra_vocab_size: Any = 256
    enable_prompt_adapter: bool = False
    qlora_adapter_name_or_path: Any = None
    # inputs other than text
    limit_mm_per_prompt: Any = None
    mm_processor_kwargs: Any = None
    mm_processor_cache_gb: Any = 4
    disable_mm_preprocessor_cache: bool = False
    disable_chunked_mm_input: bool = False
    skip_mm_profiling: bool = False
    language_model_only: bool = False
    interleave_mm_strings: bool = False
    media_io_kwargs: Any = None
    allowed_local_media_path: Any = ""
    allowed_media_domains: Any = None
    enable_prompt_embeds: bool = False
    # what the model is and does
    task: Any = "auto"
    runner: Any = "auto"
    convert: Any = "auto"
    config_format: Any = "auto"
    hf_config_path: Any = None
    hf_overrides: Any = None
    hf_token: Any = None
    code_revision: Any = None
    rope_scaling: Any = None
    rope_theta: Any = None
    disable_sliding_window: bool = False
    model_loader_extra_config: Any = None
    ignore_patterns: Any = None
    tokenizer_revision: Any = None
    override_generation_config: Any = None
    pooler_config: Any = None
    override_pooler_config: Any = None
    override_neuron_config: Any = None
    logits_processors: Any = None
    logits_processor_pattern: Any = None
    logprobs_mode: Any = "raw_logprobs"
    enable_sleep_mode: bool = False
    # structured output, reasoning, speculation
    guided_decoding_backend: Any = "auto"
    structured_outputs_config: Any = None
    reasoning_parser: Any = ""
    speculative_config: Any = None
    speculative_model: Any = None
    num_speculative_tokens: Any = None
    num_lookahead_slots: Any = 0
    # several devices
    distributed_executor_backend: Any = None
    data_parallel_rank: Any = None
    data_parallel_size_local: Any = None
    data_parallel_address: Any = None
    data_parallel_rpc_port: Any = None
    data_parallel_backend: Any = "mp"
    data_parallel_hybrid_lb: bool = False
    data_parallel_external_lb: bool = False
    decode_context_parallel_size: Any = 1
    prefill_context_parallel_size: Any = 1
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    nnodes: Any = 1
    node_rank: Any = 0
    ray_workers_use_nsight: bool = False
    worker_cls: Any = "auto"
    worker_extension_cls: Any = ""
    # memory and scheduling
    cpu_offload_gb: Any = 0
    calculate_kv_scales: bool = False
    kv_sharing_fast_prefill: bool = False
    kv_transfer_config: Any = None
    kv_events_config: Any = None
    ec_transfer_config: Any = None
    max_num_partial_prefills: Any = 1
    max_long_partial_prefills: Any = 1
    num_scheduler_steps: Any = 1
    scheduler_delay_factor: Any = 0.0
    scheduler_cls: Any = None
    preemption_mode: Any = None
    # observation
    otlp_traces_endpoint: Any = None
    collect_detailed_traces: Any = None
    additional_config: Any = None
    # of other machines: whatever they say, there is nothing for it to act on
    compilation_config: Any = None
    cuda_graph_sizes: Any = None
    disable_cascade_attn: bool = False
    disable_custom_all_reduce: bool = False
    disable_hybrid_kv_cache_manager: Any = False
    max_parallel_loading_workers: Any = None
    max_seq_len_to_capture: Any = None
    max_context_len_to_capture: Any = None
    multi_step_stream_outputs: bool = True
    show_hidden_metrics_for_version: Any = None
    swap_space: Any = 4
    tokenizer_pool_size: Any = 0
    use_tqdm_on_load: bool = True
    use_v2_block_manager: bool = True

    def refuse_absent(self) -> None:
        """Raise `NotImplementedError` for what asks for something that is missing."""
        for field in fields(AbsentFeatures):
            value = getattr(self, field.name)
            if field.name in _WITHOUT_MEANING or _asks_for_nothing(value):
                continue
            if not any(value == each for each in (field.default, *_HARMLESS.get(field.name, ()))):
                raise NotImplementedError(f"{field.name}={value!r} is not implemented")


def _asks_for_nothing(value: object) -> bool:
    return value is None or value is False or value in ("", {}, [])


_HARMLESS: dict[str, tuple[object, ...]] = {
    "task": ("generate",),
    "runner": ("generate",),
    "convert": ("none",),
    "config_format": ("hf",),
    "distributed_executor_backend": ("mp", "uni"),  # one process is all that either would be
    "data_parallel_rank": (0,),
    "data_parallel_size_local": (1,),
    "num_speculative_tokens": (0,),
}
_WITHOUT_MEANING = frozenset(
    (
        "compilation_config",
        "cuda_graph_sizes",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        # of adapters, which are refused by the name that asks for them
        "lora_dtype",
        "lora_extra_vocab_size",
        "max_cpu_loras",
        "max_lora_rank",
        "max_loras",
        "max_parallel_loading_workers",
        "max_seq_len_to_capture",
        "max_context_len_to_capture",
        "mm_processor_cache_gb",
        "multi_step_stream_outputs",
        "show_hidden_metrics_for_version",
        "swap_space",
        "tokenizer_pool_size",
        "use_tqdm_on_load",
        "use_v2_block_manager",
    )
)
