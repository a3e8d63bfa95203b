"""`Worker`: what `AsyncLLM.collective_rpc` reaches in the core.

Its methods are those of vLLM's worker that ask or do something here, and whose results msgpack can
carry. They are called between two steps.
"""

from engine.core.models.lora.shelf import AdapterShelf
from engine.core.runner.model_runner import ModelRunner
from engine.core.runner.sizes import cache_bytes_per_token


class Worker:
    """The one worker there is: it computes on the one device."""

    def __init__(self, runner: ModelRunner, adapters: AdapterShelf | None = None) -> None:
        self._runner = runner
        self._adapters = adapters

    def check_health(self) -> None:
        """Return: an answer shows that the step loop comes round."""

    def get_model_inspection(self) -> str:
        """The modules of the model, as torch prints them."""
        return str(self._runner.loaded.model)

    def get_cache_block_size_bytes(self) -> int:
        """Of one block of the KV cache, in all layers together."""
        loaded = self._runner.loaded
        return loaded.block_size * cache_bytes_per_token(loaded)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return self._runner.loaded.tasks

    def list_loras(self) -> list[int]:
        """The numbers of the adapters that are in memory."""
        return [] if self._adapters is None else self._adapters.numbers()

    def reload_weights(self) -> None:
        """Nothing to do: after sleep of level 2 weights are read when they wake up."""

    def reset_mm_cache(self) -> None:
        """Nothing to do: there are no inputs but text."""

    def reset_encoder_cache(self) -> None:
        """Nothing to do: there is no encoder."""
