"""`AsyncLLM`: the engine as a program sees it; `generate` streams, `abort` stops.

    library     AsyncLLM.from_engine_args(args) starts a core of its own, blocking until it is ready
    connected   AsyncLLM.connect(address, model=folder) joins the core that a supervisor watches

Call-compatible with vLLM's class of the same name. Use one instance from one event loop at a time.
It owns no task; left without `shutdown()` it keeps no interpreter alive and leaves no child.
"""

import asyncio
import contextlib
import os
import secrets
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from engine.args import AsyncEngineArgs
from engine.connection import STALL_SECONDS, CoreConnection, CoreState
from engine.download import resolve_model
from engine.errors import (
    EngineDeadError,
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
)
from engine.inputs import ModelConfig, Prompt, check_params, check_prompt, parse_prompt
from engine.ipc import Abort, AddRequest, Ready, SchedulerStats, SequenceOutput
from engine.launcher import CoreProcess, PrivateDirectory
from engine.output_processor import (
    OutputProcessor,
    ProgressCallback,
    RequestOutputCollector,
    RequestState,
    merge_outputs,
)
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer

ABORT_CONFIRM_SECONDS = 1.0  # a core that is silent for longer is not waited for
HANDSHAKE_SECONDS = 30.0
MAX_OUTPUTS_PER_TURN = 128  # processed before the event loop gets a turn

StateCallback = Callable[[CoreState, str], None]


class _AwaitableInt(int):
    """An int that may also be awaited, as vLLM's earlier engine wanted it."""

    def __await__(self) -> Generator[None, None, int]:
        return int(self)
        yield


@dataclass(kw_only=True)
class _Parts:
    """What a new engine is made of."""

    address: str
    model: str
    served_model_name: str
    tokenizer: Tokenizer
    core: CoreProcess | None = None  # ours to end
    directory: PrivateDirectory | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_logprobs: int = 20
    stream_interval: int = 1
    on_core_state: StateCallback | None = None
    stall_seconds: float = STALL_SECONDS
    health_seconds: float = STALL_SECONDS


class AsyncLLM:
    """An engine. Made by `from_engine_args` or `connect`, ended by `shutdown`."""

    def __init__(self, *args: Any, _parts: _Parts | None = None, **kwargs: Any) -> None:
        if _parts is None or args or kwargs:
            raise TypeError("AsyncLLM is made by AsyncLLM.from_engine_args(AsyncEngineArgs(...))")
        self._parts = _parts
        self.tokenizer = _parts.tokenizer
        self.output_processor = OutputProcessor()
        self.dead_error: EngineDeadError | None = None  # for good: the engine cannot be used again
        self._ready: Ready | None = None  # of the latest core
        self._inbox: dict[str, SequenceOutput] = {}  # by internal id, not yet processed
        self._is_processing = False
        self._num_sent = 0  # requests and their tokens since the core last told its load
        self._num_sent_tokens = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection = CoreConnection(
            _parts.address,
            self,
            reconnect=_parts.core is None,
            stall_seconds=_parts.stall_seconds,
        )
        self._release = weakref.finalize(
            self, _release, os.getpid(), self._connection, _parts.core, _parts.directory
        )

    # ---- start and end

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: Any = None,
    ) -> "AsyncLLM":
        """Start a core and block until it takes requests. Needs no event loop.

        Raises `EngineStartError` with the core's last log lines, `DownloadError` if `model` is a
        hub id that cannot be fetched. The last three arguments are vLLM's, and without effect.
        """
        folder = resolve_model(
            engine_args.model,
            revision=engine_args.revision,
            cache_dir=engine_args.download_dir,
        )
        directory = PrivateDirectory()
        core: CoreProcess | None = None
        engine: AsyncLLM | None = None
        try:
            config = engine_args.create_engine_config(directory.address, model=str(folder))
            core = CoreProcess(config)
            parts = _Parts(
                address=directory.address,
                model=config.model,
                served_model_name=config.served_model_name,
                tokenizer=Tokenizer(engine_args.tokenizer or folder),  # while the core loads
                core=core,
                directory=directory,
                max_num_queued_reqs=engine_args.max_num_queued_reqs,
                max_num_queued_tokens=engine_args.max_num_queued_tokens,
                max_logprobs=engine_args.max_logprobs,
                stream_interval=engine_args.stream_interval,
                health_seconds=engine_args.watchdog_seconds,
            )
            core.wait_ready()
            engine = cls(_parts=parts)
            engine._connection.handshake(HANDSHAKE_SECONDS)
            return engine
        except BaseException:
            if engine is not None:
                engine.shutdown()
            if core is not None:
                core.terminate()
            directory.remove()
            raise

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        model: str,
        served_model_name: str | None = None,
        tokenizer: str | None = None,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        on_core_state: StateCallback | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> "AsyncLLM":
        """Join a core that somebody else starts and watches; it may not be there yet.

        `model` is the local folder (for the tokenizer). Joining begins in the running event loop,
        or with the first call that has one. `on_core_state(state, reason)` is called on that loop
        whenever `core_state` changes. When the core dies every open stream raises
        `EngineDeadError`, and new requests `RetryableRequestError` until the next core is there.
        """
        parts = _Parts(
            address=address,
            model=model,
            served_model_name=served_model_name or model,
            tokenizer=Tokenizer(tokenizer or model),
            max_num_queued_reqs=max_num_queued_reqs,
            max_num_queued_tokens=max_num_queued_tokens,
            on_core_state=on_core_state,
            stall_seconds=stall_seconds,
            health_seconds=stall_seconds,
        )
        engine = cls(_parts=parts)
        with contextlib.suppress(RuntimeError):
            engine._attach()
        return engine

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine, and the core if it is ours; open streams raise `EngineDeadError`.

        Blocks for as long as the core takes to end, a few seconds at most. Idempotent.
        """
        self._abort_in_core(self._states())
        if self.dead_error is None:
            self.dead_error = EngineDeadError("the engine was shut down")
        self._end_all("the engine was shut down")
        self._release()

    # ---- requests

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: Any,
        prompt_token_ids: list[int] | None = None,
        lora_request: Any = None,
        prefix_pos: int | None = None,
        *,
        on_progress: ProgressCallback | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a prompt; the last output has `finished` True.

        Nothing happens before the first iteration, and errors of the arguments appear there.
        Leaving the stream in any way (break and `aclose`, cancellation) aborts the request. After
        `abort()` one last output with finish reason "abort" and the partial text comes.
        `on_progress` is called on the event loop while the request waits and its prompt is read.
        `options` are the keyword arguments of `add_request`.
        """
        if isinstance(request_id, SamplingParams):
            message = "generate() takes prompt, sampling_params, request_id, in this order"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            prompt, sampling_params, request_id = sampling_params, request_id, prompt  # type: ignore[assignment]
        if prefix_pos is not None:
            message = "prefix_pos has no effect: prefixes are cached automatically"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        stream = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            prompt_token_ids=prompt_token_ids,
            lora_request=lora_request,
            on_progress=on_progress,
            **options,
        )
        try:
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            stream.close()

    async def add_request(
        self,
        request_id: Any,
        prompt: Prompt,
        params: SamplingParams,
        arrival_time: float | None = None,
        *,
        prompt_token_ids: list[int] | None = None,
        prompt_text: str | None = None,
        resume_token_ids: Sequence[int] = (),
        priority: int = 0,
        on_progress: ProgressCallback | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Any = None,
        session_id: str | None = None,
        kv_hints: Any = None,
        data_parallel_rank: int | None = None,
    ) -> RequestOutputCollector:
        """Send a request and return the reader's end of it, which iterates over its outputs.

        The id is taken at once and free again after the end or an `abort`. Cancelling this call
        leaves nothing behind; letting go of what it returns aborts the request. With
        `resume_token_ids` the answer goes on behind tokens that an earlier run has shown. Raises
        `ValidationError` for wrong arguments, `RetryableRequestError` while there is no core,
        `QueueOverflowError` and `MaxQueuedTokensError` when too much is waiting.
        """
        parsed = parse_prompt(prompt, prompt_token_ids, prompt_text)
        check_params(params, lora_request, self._parts.max_logprobs)
        self.check_admission()
        self._attach()
        params = self._complete_params(params)
        collector = RequestOutputCollector(params.output_kind, request_id)
        state = RequestState(
            request_id,
            params,
            collector,
            prompt=parsed.text,
            arrival_time=arrival_time,
            on_progress=on_progress,
        )
        self.output_processor.add(state)
        try:
            token_ids = parsed.token_ids
            if token_ids is None:
                token_ids = await self._tokenize(parsed.text or "", tokenization_kwargs or {})
            if not state.has_ended:  # it may have been aborted meanwhile
                self._send(state, token_ids, resume_token_ids, priority, parsed.cache_salt)
        except BaseException:
            self.output_processor.discard(state)
            raise
        collector.call_on_close(lambda: self._leave(state))
        return collector

    async def abort(self, request_id: Any, internal: bool = False) -> None:
        """End a request, or each of several; unknown and ended ids are ignored.

        Acts before it first yields: no further token is taken, the id is free. The reader gets its
        last output once the core has freed the request's blocks, after one second at the latest.
        """
        is_one = isinstance(request_id, str) or not isinstance(request_id, Iterable)
        for each in [request_id] if is_one else list(request_id):
            state = self.output_processor.find(each, internal=internal)
            if state is not None and not state.is_aborting:
                self._abort(state)

    def check_admission(self, n: int = 1, request_id: Any = None) -> None:
        """Raise if `n` more requests could not be taken now; all these errors carry a 503."""
        if self.errored:
            raise self._dead()
        if self._connection.ready is None:
            raise RetryableRequestError("the engine core is not ready")
        stats, limits, ready = self.stats, self._parts, self._connection.ready
        num_free_seats = max(0, ready.max_num_seqs - (stats.num_running if stats else 0))
        num_waiting = stats.num_waiting if stats else 0
        num_waiting += max(0, self._num_sent + n - num_free_seats)
        if limits.max_num_queued_reqs is not None and num_waiting > limits.max_num_queued_reqs:
            raise QueueOverflowError("too many requests are waiting")
        num_tokens = (stats.num_waiting_tokens if stats else 0) + self._num_sent_tokens
        if limits.max_num_queued_tokens is not None and num_tokens > limits.max_num_queued_tokens:
            raise MaxQueuedTokensError("too many prompt tokens are waiting")

    # ---- what is known of the core

    @property
    def core_state(self) -> CoreState:
        return self._connection.state

    @property
    def is_ready(self) -> bool:
        """A core is joined and its step loop comes round."""
        return self._connection.state is CoreState.READY and not self.errored

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Return when `is_ready`. Raises `TimeoutError`, or `EngineDeadError` if it never will."""
        if self.errored:
            raise self._dead()
        self._attach()
        async with asyncio.timeout(timeout):
            await self._connection.wait_ready()

    @property
    def ready(self) -> Ready:
        """What the latest core said of itself; `RetryableRequestError` before the first one."""
        if self._ready is None:
            raise RetryableRequestError("no engine core has answered yet")
        return self._ready

    @property
    def model_config(self) -> ModelConfig:
        """The served model; `RetryableRequestError` before the first core has answered."""
        ready = self.ready
        return ModelConfig(
            model=self._parts.model,
            served_model_name=self._parts.served_model_name,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            dtype=ready.dtype,
        )

    @property
    def stats(self) -> SchedulerStats | None:
        """The core's load, at most a second old while it is well."""
        return self._connection.stats

    async def metrics(self) -> dict[str, Any]:
        """The core's counters; `EngineDeadError` if there is no core to ask."""
        self._attach()
        values: dict[str, Any] = await self._connection.call("metrics")
        return values

    async def check_health(self) -> None:
        """Make a round trip through the step loop. Raises `EngineDeadError` if it does not come."""
        if self.errored:
            raise self._dead()
        self._attach()
        limit = self._parts.health_seconds
        try:
            async with asyncio.timeout(limit):
                await self._connection.call("num_unfinished")
        except TimeoutError:
            problem = f"the engine core has not answered for {limit:g} s"
            raise EngineDeadError(problem) from None

    @property
    def errored(self) -> bool:
        """Whether the engine is dead for good. A connected one is only after `shutdown`."""
        if self.dead_error is not None:
            return True
        return self._parts.core is not None and self._connection.core_has_exited()

    @property
    def is_running(self) -> bool:
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        return self.errored

    def get_tokenizer(self, lora_request: Any = None) -> Tokenizer:
        """The tokenizer, which may also be awaited."""
        return self.tokenizer

    def get_num_unfinished_requests(self) -> int:
        """How many requests of this client have not had their last output; may be awaited."""
        return _AwaitableInt(len(self.output_processor.request_states))

    # ---- from the connection

    def on_core_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        """Called by the connection: keep what has come, one merged output for each request."""
        self._num_sent = self._num_sent_tokens = 0
        for output in outputs:
            waiting = self._inbox.get(output.request_id)
            self._inbox[output.request_id] = merge_outputs(waiting, output) if waiting else output
        if self._loop is not None and not self._is_processing:
            self._is_processing = True
            self._loop.call_soon(self._process_inbox)

    def on_core_state(self, state: CoreState, reason: str) -> None:
        """Called by the connection."""
        if state is CoreState.READY:
            self._ready = self._connection.ready
        elif state is CoreState.DEAD:
            if self._parts.core is not None and self.dead_error is None:
                status = self._parts.core.poll()
                self.dead_error = EngineDeadError(f"{reason} (exit status {status})")
            self._end_all(reason)
        if self._parts.on_core_state is not None:
            self._parts.on_core_state(state, reason)

    def _process_inbox(self) -> None:
        batch = list(islice(self._inbox, MAX_OUTPUTS_PER_TURN))
        to_stop = self.output_processor.process([self._inbox.pop(i) for i in batch])
        if to_stop:
            self._connection.send(Abort(to_stop, reason="stop"))
        self._is_processing = bool(self._inbox) and self._loop is not None
        if self._is_processing and self._loop is not None:
            self._loop.call_soon(self._process_inbox)

    # ---- helpers

    def _attach(self) -> None:
        """Work on the running event loop; what another one has left open is given up."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                self._abort_in_core(self._states())
                self._end_all("its event loop has ended")
            self._is_processing = False
            self._loop = loop
        self._connection.attach()

    def _states(self) -> list[RequestState]:
        return list(self.output_processor.request_states.values())

    def _complete_params(self, params: SamplingParams) -> SamplingParams:
        """Our own copy. With a seed, so that the same request can be sent again."""
        seed = secrets.randbits(63) if params.seed is None else params.seed % (1 << 64)
        interval = params.stream_interval or self._parts.stream_interval
        return msgspec.structs.replace(params, seed=seed, stream_interval=interval)

    async def _tokenize(self, text: str, options: dict[str, Any]) -> list[int]:
        unknown = options.keys() - {"add_special_tokens"}
        if unknown:
            raise NotImplementedError(f"tokenization_kwargs {sorted(unknown)} are not implemented")
        return await self.tokenizer.encode_async(text, options.get("add_special_tokens", True))

    def _send(
        self,
        state: RequestState,
        token_ids: list[int],
        resume_token_ids: Sequence[int],
        priority: int,
        cache_salt: str,
    ) -> None:
        """Give a request to the core. No `await` here: a cancelled caller could leak it."""
        ready = self._connection.ready
        if ready is None:
            raise RetryableRequestError("the engine core is not ready")
        check_prompt(token_ids, resume_token_ids, ready)
        state.set_prompt(self.tokenizer, token_ids, resume_token_ids)
        if state.stop_string is not None:
            self.output_processor.end(state, "stop")
            return
        request = AddRequest(
            request_id=state.internal_id,
            prompt_token_ids=token_ids,
            params=state.params,
            arrival_time=state.metrics.arrival_time,
            resume_token_ids=state.resume_token_ids,
            priority=priority,
            cache_salt=cache_salt,
        )
        if not self._connection.send(request):
            raise RetryableRequestError("the engine core cannot be reached")
        state.in_core = True
        self._num_sent += 1
        self._num_sent_tokens += len(token_ids)

    def _abort(self, state: RequestState) -> None:
        self.output_processor.start_abort(state)
        if not state.in_core:
            self.output_processor.end(state, "abort")
            return
        self._connection.send(Abort([state.internal_id]))
        if self._loop is not None:
            self._loop.call_later(ABORT_CONFIRM_SECONDS, self._end_unconfirmed, state)

    def _end_unconfirmed(self, state: RequestState) -> None:
        """The core is silent: end the aborted request alone. What it says later is dropped."""
        if not state.has_ended:
            state.metrics.core_confirmed = False
            self.output_processor.end(state, "abort")

    def _end_all(self, reason: str) -> None:
        """No core will answer any more: end what is open, after what it had still said."""
        self.output_processor.process(self._inbox.values())
        self._inbox.clear()
        for state in self._states():
            if state.is_aborting:
                self._end_unconfirmed(state)
            else:
                self.output_processor.fail(state, self.dead_error or EngineDeadError(reason))

    def _leave(self, state: RequestState) -> None:
        """The reader of a request is gone, perhaps found out by the garbage collector."""
        if state.has_ended or self._loop is None:
            return
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = self._loop.is_closed()
        if is_here:
            self._forget(state)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._forget, state)

    def _forget(self, state: RequestState) -> None:
        if state.internal_id in self.output_processor.request_states:
            self.output_processor.discard(state)
            self._abort_in_core([state])

    def _abort_in_core(self, states: Iterable[RequestState]) -> None:
        ids = [state.internal_id for state in states if state.in_core and not state.is_aborting]
        if ids:
            self._connection.send(Abort(ids))

    def _dead(self) -> EngineDeadError:
        return self.dead_error or EngineDeadError()


def _release(
    owner_pid: int,
    connection: CoreConnection,
    core: CoreProcess | None,
    directory: PrivateDirectory | None,
) -> None:
    """End what an engine holds: at its shutdown, its collection, or the interpreter's exit."""
    if os.getpid() != owner_pid:
        return  # a forked child, which owns none of it
    connection.close()
    if core is not None:
        core.terminate()
    if directory is not None:
        directory.remove()


AsyncLLMEngine = AsyncLLM
