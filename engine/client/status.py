"""`EngineStatus`: the part of `AsyncLLM` that says what is known of an engine and its core."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from engine.client.lora.adapters import Adapters
from engine.client.parts import EngineParts
from engine.client.requests.core_client import CoreClient
from engine.client.requests.core_link import CoreState, Exactness
from engine.client.requests.inputs import InputPreprocessor, supported_tasks
from engine.client.requests.outgoing import check_readable
from engine.client.requests.output_processor import OutputProcessor
from engine.client.requests.stat_loggers import StatLoggers
from engine.client.text.tokenizer import Tokenizer
from engine.client.vllm_config import (
    DecodingConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
    describe,
)
from engine.errors import EngineDeadError, RetryableRequestError
from engine.ipc import AddRequest, Ready, SchedulerStats


class AwaitableInt(int):
    """An int that may also be awaited, as vLLM's earlier engine wanted it."""

    def __await__(self) -> Generator[None, None, int]:
        return int(self)
        yield


@dataclass(frozen=True, slots=True)
class EngineCoreHandle:
    """The core as vLLM's programs reach it, past all that `AsyncLLM` does for a request."""

    client: CoreClient

    async def add_request_async(self, request: AddRequest) -> None:
        """Send a request; its outputs are dropped, unless an `AsyncLLM` has a reader for them.

        `ValidationError` for one that the core could not read.
        """
        self.client.attach()
        check_readable(request)
        if not self.client.link.send(request):
            raise RetryableRequestError("the engine core cannot be reached")

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """End requests by their internal ids; unknown ones are ignored."""
        self.client.attach()
        self.client.link.abort(list(request_ids))


class EngineStatus:
    """What an engine knows without changing anything. See `AsyncLLM`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._client = parts.client
        self._adapters = Adapters(parts.client)
        self._stat_loggers = StatLoggers(log_lines=parts.log_stats)
        self._client.stat_loggers = self._stat_loggers
        self.tokenizer = parts.tokenizer

    # ---- life

    @property
    def core_state(self) -> CoreState:
        return self._client.link.state

    @property
    def is_ready(self) -> bool:
        """A core is joined and its step loop comes round."""
        return self._client.link.state is CoreState.READY and not self.errored

    @property
    def exactness(self) -> Exactness:
        """What becomes of an answer when its core dies and another one is joined."""
        return self._client.link.exactness

    @property
    def computes(self) -> str | None:
        """By what: two that say the same write the same, bit for bit. None: nobody has said it."""
        ready = self._client.ready
        return None if ready is None else ready.computes or None

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Return when `is_ready`. Raises `TimeoutError`, or `EngineDeadError` if it never will."""
        if self.errored:
            raise self._death
        self._client.attach()
        async with asyncio.timeout(timeout):
            await self._client.link.wait_ready()

    async def check_health(self) -> None:
        """Make a round trip through the step loop. Raises `EngineDeadError` if it does not come."""
        if self.errored:
            raise self._death
        limit = self._parts.health_seconds
        try:
            async with asyncio.timeout(limit):
                await self._call("num_unfinished")
        except TimeoutError:
            problem = f"the engine core has not answered for {limit:g} s"
            raise EngineDeadError(problem) from None

    @property
    def errored(self) -> bool:
        """Whether the engine is dead for good. A connected one is only after `shutdown`."""
        return self._client.has_died

    @property
    def dead_error(self) -> EngineDeadError | None:
        """What to raise when the engine is dead, as `errored` says; None before."""
        return self._death if self.errored else None

    @property
    def is_running(self) -> bool:
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        return self.errored

    # ---- requests and load

    @property
    def output_processor(self) -> OutputProcessor:
        """The open requests."""
        return self._client.requests

    @property
    def engine_core(self) -> EngineCoreHandle:
        return EngineCoreHandle(self._client)

    def get_num_unfinished_requests(self) -> int:
        """How many answers of this client have not had their last output; may be awaited."""
        return AwaitableInt(len(self.output_processor.request_states))

    def get_num_queued_tokens(self) -> int:
        """How many prompt tokens wait in the core, of all clients, as far as is known here."""
        return self._client.num_queued_tokens

    def check_admission(self, n: int = 1, request_id: Any = None) -> None:
        """Raise if `n` more requests could not be taken now; all these errors carry a 503."""
        self._client.check_admission(n)

    @property
    def stats(self) -> SchedulerStats | None:
        """The core's load, at most a second old while it is well."""
        return self._client.stats

    @property
    def heard_at(self) -> float | None:
        """When the core last said how it is, by `time.monotonic()`: each second while it is well.

        None where nothing but `core_state` tells.
        """
        return self._client.heard_at

    @property
    def incarnation(self) -> int | None:
        """Of the core that was joined last: drawn again at each start of one."""
        ready = self._client.ready
        return None if ready is None else ready.epoch

    async def metrics(self) -> dict[str, Any]:
        """The core's counters; `EngineDeadError` if there is no core to ask."""
        values: dict[str, Any] = await self._call("metrics")
        return values

    # ---- model and settings

    @property
    def ready(self) -> Ready:
        """What the latest core said of itself; `RetryableRequestError` before the first one."""
        if self._client.ready is None:
            raise RetryableRequestError("no engine core has answered yet")
        return self._client.ready

    @property
    def vllm_config(self) -> VllmConfig:
        """Model, cache and scheduler; `RetryableRequestError` before the first core's answer."""
        return describe(self.ready, self._parts.model, self._parts.served_model_name)

    @property
    def model_config(self) -> ModelConfig:
        """The served model; `RetryableRequestError` before the first core has answered."""
        return self.vllm_config.model_config

    @property
    def scheduler_config(self) -> SchedulerConfig:
        return self.vllm_config.scheduler_config

    async def get_vllm_config(self) -> VllmConfig:
        return self.vllm_config

    async def get_model_config(self) -> ModelConfig:
        return self.model_config

    async def get_scheduler_config(self) -> SchedulerConfig:
        return self.scheduler_config

    async def get_parallel_config(self) -> ParallelConfig:
        return self.vllm_config.parallel_config

    async def get_decoding_config(self) -> DecodingConfig:
        return self.vllm_config.decoding_config

    async def get_lora_config(self) -> LoRAConfig | None:
        """None without `enable_lora`."""
        return self.vllm_config.lora_config

    async def get_input_preprocessor(self) -> InputPreprocessor:
        return InputPreprocessor(self.tokenizer)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the core can do; before the first one has answered, only "generate" is known."""
        ready = self._client.ready
        return ("generate",) if ready is None else supported_tasks(ready)

    async def is_tracing_enabled(self) -> bool:
        """Whether requests become spans, and `trace_headers` name the caller's."""
        return self._parts.tracing is not None

    def get_tokenizer(self, lora_request: Any = None) -> Tokenizer:
        """The tokenizer, which may also be awaited."""
        return self.tokenizer

    # ---- helpers

    @property
    def _death(self) -> EngineDeadError:
        """Why the engine has died, as far as is known here."""
        return self._client.dead_error or EngineDeadError()

    async def _call(self, name: str, *args: Any) -> Any:
        """Ask the core by name; `EngineGenerateError` if it answers with an error."""
        return await self._client.call(name, *args)
