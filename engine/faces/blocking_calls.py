"""`BlockingCalls`: the coroutines of `AsyncLLM` that concern no single request, as plain calls."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from engine.client.async_llm import AsyncLLM
from engine.client.text.tokenizer import Tokenizer
from engine.client.vllm_config import ModelConfig, VllmConfig
from engine.faces.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["BlockingCalls", P], T]:
    """The same method, which returns when it has ended."""

    @wraps(method)
    def call(self: "BlockingCalls", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._engine, *args, **kwargs))

    return call


class BlockingCalls:
    """See `AsyncLLM` for what each method does."""

    def __init__(self, engine: AsyncLLM, thread: LoopThread) -> None:
        self._engine = engine
        self._thread = thread

    check_health = _blocking(AsyncLLM.check_health)
    sleep = _blocking(AsyncLLM.sleep)
    wake_up = _blocking(AsyncLLM.wake_up)
    is_sleeping = _blocking(AsyncLLM.is_sleeping)
    reset_prefix_cache = _blocking(AsyncLLM.reset_prefix_cache)
    reset_mm_cache = _blocking(AsyncLLM.reset_mm_cache)
    reset_encoder_cache = _blocking(AsyncLLM.reset_encoder_cache)
    add_lora = _blocking(AsyncLLM.add_lora)
    remove_lora = _blocking(AsyncLLM.remove_lora)
    list_loras = _blocking(AsyncLLM.list_loras)
    pin_lora = _blocking(AsyncLLM.pin_lora)
    collective_rpc = _blocking(AsyncLLM.collective_rpc)
    stop_profile = _blocking(AsyncLLM.stop_profile)
    do_log_stats = _blocking(AsyncLLM.do_log_stats)
    get_supported_tasks = _blocking(AsyncLLM.get_supported_tasks)
    get_metrics = _blocking(AsyncLLM.metrics)

    def start_profile(self, profile_prefix: str | None = None) -> None:
        self._thread.run(self._engine.start_profile(profile_prefix))

    @property
    def model_config(self) -> ModelConfig:
        return self._engine.model_config

    @property
    def vllm_config(self) -> VllmConfig:
        return self._engine.vllm_config

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self._engine.get_tokenizer()
