"""`GenerationResult`: what `generate_async` returns, in TensorRT-LLM's names.

It is read in steps: each takes what the engine has made since the last one. Readers may be in the
engine's event loop, in another one, or in a thread without any; what a step takes is kept here, so
a reader who gives up waiting loses nothing.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

import msgspec

from engine.client.requests.collector import RequestOutputCollector
from engine.errors import EngineDeadError, EngineGenerateError
from engine.outputs import CompletionOutput, OutputError, RequestMetrics, RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams

ENDED = "the event loop of the engine has ended"

T = TypeVar("T")


class Engine(Protocol):
    """What a result asks of an `AsyncLLM`."""

    @property
    def add_request(self) -> Callable[..., Coroutine[Any, Any, RequestOutputCollector]]: ...

    @property
    def abort(self) -> Callable[..., Coroutine[Any, Any, None]]: ...


@dataclass(slots=True)
class GeneratedOutput(CompletionOutput):
    """All of an answer so far, and apart from it what the last step has brought."""

    text_diff: str = ""
    token_ids_diff: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Of the answer, in tokens."""
        return len(self.token_ids)


class GenerationResult:
    """One request in the making. Letting go of it aborts the request.

    `await` it or call `result()` for the whole answer; iterate over it, with `for` or `async for`,
    for the answer as it grows: each item is this object.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Any,
        params: SamplingParams,
        *,
        is_streaming: bool,
        loop: asyncio.AbstractEventLoop | None,
        **options: Any,
    ) -> None:
        """Ask in `loop`, by default the running one. `options` are those of `add_request`."""
        self.request_id = f"async-{uuid.uuid4().hex}"
        self.prompt: str | None = None
        self.prompt_token_ids: list[int] | None = None
        self.outputs: list[GeneratedOutput] = []  # an answer each, in the order of their index
        self.error: OutputError | None = None
        self.metrics: RequestMetrics | None = None
        self._engine = engine
        self._loop = loop or asyncio.get_running_loop()
        self._is_aborted = False
        self._has_ended = False
        self._failure: Exception | None = None  # that came in place of an end
        self._stream: RequestOutputCollector | None = None
        kind = RequestOutputKind.DELTA if is_streaming else RequestOutputKind.FINAL_ONLY
        params = msgspec.structs.replace(params, output_kind=kind)
        opening = self._start(self._open(inputs, params, options))
        self._opening: Future[RequestOutputCollector] | None = opening

    # ---- to read it

    def result(self, timeout: float | None = None) -> "GenerationResult":
        """Wait for the whole answer. Raises `TimeoutError` after so many seconds; ask again then.

        Raises what `AsyncLLM.add_request` raises, `EngineGenerateError` for a request that failed,
        `EngineDeadError` if the core has died, and `RuntimeError` in the engine's own event loop,
        which would wait for itself. Ctrl-C aborts the request.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has_ended:
            self._result_step(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        self._raise_error()
        return self

    async def aresult(self) -> "GenerationResult":
        """As `result`, in any event loop."""
        while not self._has_ended:
            await self._aresult_step()
        self._raise_error()
        return self

    def __await__(self) -> Generator[Any, None, "GenerationResult"]:
        return self.aresult().__await__()

    def __iter__(self) -> Iterator["GenerationResult"]:
        return self

    def __next__(self) -> "GenerationResult":
        if self._has_ended:
            self._raise_error()
            raise StopIteration
        self._result_step(None)
        self._raise_error()
        return self

    def __aiter__(self) -> AsyncIterator["GenerationResult"]:
        return self

    async def __anext__(self) -> "GenerationResult":
        if self._has_ended:
            self._raise_error()
            raise StopAsyncIteration
        await self._aresult_step()
        self._raise_error()
        return self

    # ---- to end it

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return self._has_ended

    @property
    def _done(self) -> bool:
        """As TensorRT-LLM's examples look at it."""
        return self._has_ended

    def abort(self) -> None:
        """End the request. A reader gets what there is, with finish reason "abort"."""
        if not self._has_ended:
            self._is_aborted = True
            self._start(self._engine.abort(self.request_id))

    # ---- steps

    def _result_step(self, timeout: float | None = None) -> None:
        """Wait for something new. Raises as `result` does."""
        if _running_loop() is self._loop:
            raise RuntimeError("this is the event loop that makes the answer: await it instead")
        step: Future[None] | None = None
        try:
            step = self._start(self._step())
            step.result(timeout)
        except CancelledError:
            raise EngineDeadError(ENDED) from None
        except KeyboardInterrupt:
            self.abort()
            raise
        finally:
            if step is not None:
                step.cancel()

    async def _aresult_step(self) -> None:
        """As `_result_step`, in any event loop."""
        if _running_loop() is self._loop:
            await self._step()
        else:
            await asyncio.wrap_future(self._start(self._step()))

    async def _step(self) -> None:
        """Take what is new as soon as there is something. Runs in the engine's event loop."""
        try:
            if self._opening is not None:
                self._stream = await asyncio.shield(asyncio.wrap_future(self._opening))
                self._opening = None
            assert self._stream is not None
            output = await self._stream.get_or_end()
        except Exception as error:
            self._has_ended, self._failure = True, error
            raise
        if output is not None:
            self._take(output)

    async def _open(
        self, inputs: Any, params: SamplingParams, options: dict[str, Any]
    ) -> RequestOutputCollector:
        stream = await self._engine.add_request(self.request_id, inputs, params, **options)
        if self._is_aborted:  # perhaps before the engine knew the request
            await self._engine.abort(self.request_id)
        return stream

    def _take(self, output: RequestOutput) -> None:
        self.prompt, self.prompt_token_ids = output.prompt, output.prompt_token_ids
        self.error, self.metrics = output.error, output.metrics
        known = {answer.index: answer for answer in self.outputs}
        for answer in self.outputs:
            answer.text_diff, answer.token_ids_diff = "", []
        for delta in output.outputs:
            if delta.index not in known:
                known[delta.index] = GeneratedOutput(
                    **{each.name: getattr(delta, each.name) for each in fields(CompletionOutput)}
                )
            else:
                known[delta.index].extend(delta)
            known[delta.index].text_diff = delta.text
            known[delta.index].token_ids_diff = list(delta.token_ids)
        self.outputs = [known[index] for index in sorted(known)]
        self._has_ended = output.finished

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop.is_closed():
            coroutine.close()
            raise EngineDeadError(ENDED)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _raise_error(self) -> None:
        """To each reader, however many there were before."""
        if self._failure is not None:
            raise self._failure
        if self.error is not None:
            raise EngineGenerateError(self.error.message)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
