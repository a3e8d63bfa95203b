"""`BlockingCalls`: which of the engine's calls a program without an event loop has."""

import inspect

from engine.client.async_llm import AsyncLLM
from engine.faces.blocking_calls import BlockingCalls

OTHERWISE = {  # how such a program does it
    "abort": "LLMEngine.abort_request",
    "add_request": "LLMEngine.add_request",
    "shutdown_background_loop": "shutdown",
    "metrics": "get_metrics",
    "get_vllm_config": "vllm_config",
    "get_model_config": "model_config",
    "get_scheduler_config": "vllm_config.scheduler_config",
    "get_parallel_config": "vllm_config.parallel_config",
    "get_decoding_config": "vllm_config.decoding_config",
    "get_lora_config": "vllm_config.lora_config",
    "get_input_preprocessor": "the tokenizer",
}
NOT_AT_ALL = {  # such a program is alone with its core, and waits for each of its calls
    *("start_background_loop", "wait_ready", "is_tracing_enabled"),
    *("pause_generation", "resume_generation", "is_paused", "wait_for_requests_to_drain"),
    *("add_logger", "remove_logger"),
}


def test_every_call_of_the_engine_is_here_or_has_a_reason() -> None:
    calls = {
        name
        for name, method in inspect.getmembers(AsyncLLM, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    here = {name for name in calls if hasattr(BlockingCalls, name)}
    assert calls - here == OTHERWISE.keys() | NOT_AT_ALL


def test_arguments_and_docstrings_are_the_engine_s() -> None:
    for name in ("reset_prefix_cache", "collective_rpc", "wake_up"):
        ours, theirs = getattr(BlockingCalls, name), getattr(AsyncLLM, name)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__ and not inspect.iscoroutinefunction(ours)
