"""`OnDemandEngine`: the engine of a model that is loaded when somebody asks it, as a worker has it.

The supervisor loads models and lets them go. This worker asks it to load one, tells it which ones
its answers use, and joins an engine while there is one. To the rest of the server it is an engine
like every other, which is not ready for a while.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from server.config.models import ModelState, ModelStatus, discreet
from server.engines.client import (
    CoreState,
    EngineClient,
    EngineDeadError,
    EngineLoad,
    EngineModel,
    Exactness,
    LoRARequest,
    ModelLoadError,
    PoolingParams,
    PoolingRequestOutput,
    QueueOverflowError,
    RequestOutput,
    RetryableRequestError,
    SamplingParams,
    TokensPrompt,
    ValidationError,
)
from server.engines.placement.group import EngineGroup
from server.engines.text_of_another import TextOfAnother
from sessions.background import Background

logger = structlog.get_logger("server")

# What has just been used is most likely used again: an answer whose prompt is made asks soon.
LINGER_SECONDS = 1.0
# A question tries again what failed before; one that follows at once gets the same answer.
RETRY_SECONDS = 5.0
HERE = (ModelState.LOADING, ModelState.LOADED)

OnCoreState = Callable[[CoreState, str], None]
Connect = Callable[[Mapping[str, Any], OnCoreState], EngineClient]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """As its files say, or as it was when it was here last."""

    max_model_len: int


class OnDemandEngine(TextOfAnother):
    """One model's. `status` is the supervisor's word, `take` hears the next one.

    `connect` joins the engine that its options name, and may block; `load` asks the supervisor to
    load it; `on_use` hears that `is_used` has changed, `on_core_state` what the engine has to say.
    At most `max_waiting` answers wait here for a model that is loaded; 0: any number.
    """

    def __init__(
        self,
        status: ModelStatus,
        *,
        connect: Connect,
        load: Callable[[], None],
        on_use: Callable[[], None],
        on_core_state: OnCoreState,
        max_waiting: int = 0,
    ) -> None:
        self.status = status
        self._max_waiting = max_waiting
        self._connect = connect
        self._load = load
        self._on_use = on_use
        self._on_core_state = on_core_state
        self._joined: EngineClient | None = None
        self._joined_by: Mapping[str, Any] | None = None  # these options
        self._is_joining = False
        self._background = Background()
        self._known: EngineModel | None = None
        self._exactness = Exactness.EXACT  # of the one that was joined last
        self._problem: str | None = None  # why this worker cannot join
        self._tried: int | None = None  # in which attempt of the supervisor's
        self._failed_at: float | None = None  # by the event loop's clock
        self._was_loaded = self._is_closed = False
        self._num_uses = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()  # set, and replaced, when anything has changed

    # ---- what the supervisor says ---------------------------------------------------------------

    def begin(self) -> None:
        """Take up the status that it was made with. Needs the event loop, as all that follows."""
        self.take(self.status)

    def take(self, status: ModelStatus) -> None:
        """The model has changed."""
        if status.state is ModelState.FAILED and self.status.state is not ModelState.FAILED:
            self._failed_at = asyncio.get_running_loop().time()
        self.status = status
        self._was_loaded |= status.state is ModelState.LOADED
        if self._joined is not None and status.options not in (None, self._joined_by):
            self._part()  # its process listens elsewhere now
        if self.group is not None:
            self.group.take(status.engines)
        if status.state in HERE:
            has_process = status.state is ModelState.LOADED or status.stage == "loading"
            if has_process and status.options is not None and not self._is_closed:
                self._join(status.options)
        elif status.state is ModelState.FAILED or not self._num_uses:
            self._part()
        elif status.state is ModelState.NOT_LOADED:
            self._load()  # it was let go in the moment in which somebody began to use it
        self._announce()

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _join(self, options: Mapping[str, Any]) -> None:
        is_hopeless = self._problem is not None and self._tried == self.status.attempt
        if self._joined is None and not self._is_joining and not is_hopeless:
            self._problem, self._tried = None, self.status.attempt
            self._is_joining = True
            self._background.spawn(self._join_soon(options))

    async def _join_soon(self, options: Mapping[str, Any]) -> None:
        """Its tokenizer is read in a thread: that of a large vocabulary takes a second."""
        try:
            joined = await asyncio.to_thread(self._connect, options, self._take_core_state)
        except ValidationError as error:
            self._problem = discreet(str(error))
            logger.error("model cannot be joined", model=self.status.name, error=str(error))
            self._announce()
            return
        finally:
            self._is_joining = False
        is_wanted = self.status.state in HERE or self._num_uses > 0
        if self._is_closed or not is_wanted or options != self.status.options:
            joined.shutdown()
            if not self._is_closed:
                self.take(self.status)  # which may name another one by now
            return
        self._joined, self._joined_by = joined, options
        if isinstance(joined, EngineGroup):
            joined.take(self.status.engines)
        self._exactness = joined.exactness
        with contextlib.suppress(EngineDeadError):
            await joined.wait_ready()  # which begins to look for it
        self._announce()

    def _part(self) -> None:
        joined, self._joined = self._joined, None
        if joined is not None:
            with contextlib.suppress(RetryableRequestError):
                self._known = joined.model_config
            joined.shutdown()

    def _take_core_state(self, state: CoreState, reason: str) -> None:
        self._announce()
        self._on_core_state(state, reason)

    # ---- who uses it ----------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """By an answer of this worker, or just a moment ago."""
        return self._num_uses > 0 or self._lingering is not None

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """While it is used it is not let go."""
        was_used = self.is_used
        self._num_uses += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if not was_used:
            self._on_use()
        try:
            yield
        finally:
            self._num_uses -= 1
            if not self._num_uses:
                loop = asyncio.get_running_loop()
                self._lingering = loop.call_later(LINGER_SECONDS, self._end_use)

    def _end_use(self) -> None:
        self._lingering = None
        self._on_use()
        if self.status.state not in HERE:
            self._part()

    # ---- until it is there ----------------------------------------------------------------------

    async def call(self, seconds: float) -> None:
        """Have it loaded. Return when it is there, or on its way, or after so many seconds.

        Raises `ModelLoadError` if it cannot be loaded, also because that has just been tried.
        """
        if self.status.state is ModelState.LOADED:
            return
        if self._failed_at is not None and self.status.state is ModelState.FAILED:
            ago = asyncio.get_running_loop().time() - self._failed_at
            if ago < RETRY_SECONDS:
                raise self._load_error()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait(lambda: self.is_ready or self.status.stage == "loading", None)

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Have it loaded, and return when it is ready.

        `timeout` bounds the time in which it counts as loaded and is not there, as after a crash:
        a loading takes as long as it takes. Raises `TimeoutError`, and `ModelLoadError`.
        """
        await self._wait(lambda: self.is_ready, timeout)

    async def _wait(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        with self.using():
            attempt = self.status.attempt - (self.status.state in HERE)  # a later one counts
            if self.status.state not in HERE:
                self._load()
            since = loop.time()
            while not is_done():
                if self.status.state is ModelState.FAILED and self.status.attempt > attempt:
                    raise self._load_error()
                if self._problem is not None:
                    raise self._load_error()
                left = None
                if self.status.state is not ModelState.LOADED:
                    since = loop.time()
                elif timeout is not None:
                    left = since + timeout - loop.time()
                async with asyncio.timeout(left):
                    await self._news.wait()

    def _load_error(self) -> ModelLoadError:
        problem = self.status.problem or self._problem or "it cannot be loaded"
        return ModelLoadError(self.status.name, problem)

    @property
    def group(self) -> EngineGroup | None:
        """The engines of the model, where there are several and it is there."""
        return self._joined if isinstance(self._joined, EngineGroup) else None

    # ---- an engine ------------------------------------------------------------------------------

    @property
    def core_state(self) -> CoreState:
        """One that was let go counts as ready: it answers when it is asked."""
        match self.status.state:
            case ModelState.LOADED:
                return CoreState.CONNECTING if self._joined is None else self._joined.core_state
            case ModelState.LOADING:
                return CoreState.READY if self._was_loaded else CoreState.CONNECTING
            case ModelState.FAILED:
                return CoreState.DEAD
        return CoreState.READY

    @property
    def is_ready(self) -> bool:
        is_loaded = self.status.state is ModelState.LOADED
        return is_loaded and self._joined is not None and self._joined.is_ready

    @property
    def exactness(self) -> Exactness:
        return self._exactness

    @property
    def model_config(self) -> EngineModel:
        if self._joined is not None:
            with contextlib.suppress(RetryableRequestError):
                return self._joined.model_config
        if self._known is not None:
            return self._known
        facts = self.status.facts
        if facts is None or facts.context_length is None:
            raise RetryableRequestError("nothing is known of the model's context yet")
        return KnownModel(facts.context_length)

    @property
    def stats(self) -> EngineLoad | None:
        return None if self._joined is None else self._joined.stats

    @property
    def heard_at(self) -> float | None:
        return None if self._joined is None else self._joined.heard_at

    @property
    def incarnation(self) -> int | None:
        return None if self._joined is None else self._joined.incarnation

    async def metrics(self) -> dict[str, Any]:
        if self._joined is None:
            raise EngineDeadError("the model is not loaded")
        return await self._joined.metrics()

    def check_admission(self, n: int = 1) -> None:
        if self._joined is not None and self.status.state is ModelState.LOADED:
            self._joined.check_admission(n)
        elif 0 < self._max_waiting < self._num_uses:  # who asks is one of them
            raise QueueOverflowError("too many requests are waiting")

    def check_params(self, params: SamplingParams) -> None:
        if self._joined is not None:
            self._joined.check_params(params)

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        with self.using():
            outputs = self.text_engine.generate(prompt, sampling_params, request_id, **options)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output

    async def encode(
        self,
        prompt: TokensPrompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        with self.using():
            outputs = self.text_engine.encode(
                prompt, pooling_params, request_id, lora_request=lora_request
            )
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output

    def place_of(self, session_id: str) -> str | None:
        return None if self.group is None else self.group.place_of(session_id)

    def know_place(self, session_id: str, name: str) -> None:
        if self.group is not None:
            self.group.know_place(session_id, name)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        with self.using():
            return await self.text_engine.add_lora(lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        return await self.text_engine.remove_lora(lora_id)

    async def abort(self, request_id: str) -> None:
        if self._joined is not None:
            await self._joined.abort(request_id)

    def shutdown(self) -> None:
        self._is_closed = True
        self._part()

    @property
    def text_engine(self) -> EngineClient:
        if self._joined is None:
            raise RetryableRequestError("the model is not loaded")
        return self._joined
