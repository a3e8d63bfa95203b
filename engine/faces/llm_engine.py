"""`LLMEngine`: requests that a program adds, and steps that it asks for, without an event loop.

    engine = LLMEngine.from_engine_args(EngineArgs(model="folder or hub id"))
    engine.add_request("request-1", "Once upon", SamplingParams(max_tokens=50))
    while engine.has_unfinished_requests():
        for output in engine.step():
            print(output.outputs[0].text)

Call-compatible with vLLM's class of the same name. The core computes on by itself: a step waits for
what it has made and hands it out.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from engine.client.args import EngineArgs
from engine.client.async_llm import AsyncLLM
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.inputs import Prompt
from engine.errors import EngineDeadError
from engine.faces.blocking_calls import BlockingCalls
from engine.faces.loop_thread import LoopThread
from engine.outputs import RequestOutput
from engine.pooling import PoolingParams, PoolingRequestOutput
from engine.sampling_params import SamplingParams

MAX_STEP_SECONDS = 0.1  # that a step waits: a prompt may take longer, and the caller has a life


class LLMEngine(BlockingCalls):
    """An engine in steps. Made by `from_engine_args`, ended by `shutdown`.

    For one thread at a time. A program that forgets `shutdown()` still ends and leaves no child.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        """`engine` belongs to this object from now on."""
        super().__init__(engine, LoopThread("llm-engine"))
        self._open: dict[str, RequestOutputCollector] = {}  # by request id, in the order added
        self._missed: list[RequestOutput | PoolingRequestOutput] = []  # of a step that has raised
        # One for all streams: it is set as soon as any of them has something.
        self._is_ready = asyncio.Event()
        self._end = weakref.finalize(self, _end, engine, self._thread)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        usage_context: Any = None,
        stat_loggers: Any = None,
        enable_multiprocessing: bool = False,
    ) -> "LLMEngine":
        """Start a core and block until it takes requests. Errors are `AsyncLLM`'s.

        `usage_context` and `enable_multiprocessing` are vLLM's, and without effect.
        """
        return cls(AsyncLLM.from_engine_args(engine_args, stat_loggers=stat_loggers))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine and its core, as `AsyncLLM.shutdown` does. Idempotent."""
        if self._end.detach() is not None:
            _end(self._engine, self._thread, timeout)

    # ---- requests

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        prompt_text: str | None = None,
    ) -> str:
        """Send a request; its id. Errors are those of `AsyncLLM.add_request`."""

        async def add() -> None:
            stream = await self._engine.add_request(
                request_id,
                prompt,
                params,
                arrival_time,
                lora_request=lora_request,
                trace_headers=trace_headers,
                priority=priority,
                prompt_text=prompt_text,
                tokenization_kwargs=tokenization_kwargs,
            )
            stream.ready = self._is_ready
            self._is_ready.set()  # if there is an output, it has set its own event
            self._open[str(request_id)] = stream

        self._thread.run(add())
        return request_id

    def abort_request(self, request_ids: Any, internal: bool = False) -> None:
        """End one request or several; no step has an output of them. Unknown ids are ignored."""
        is_one = isinstance(request_ids, str) or not isinstance(request_ids, Iterable)

        async def close() -> None:
            for each in [request_ids] if is_one else list(request_ids):
                if (stream := self._open.pop(str(each), None)) is not None:
                    stream.close()

        self._thread.run(close())

    def step(self) -> list[RequestOutput | PoolingRequestOutput]:
        """What is new: at most one output of each request. It may be nothing.

        Returns as soon as there is something, at once if no request is open, and after 0.1 s in any
        case. Raises `EngineDeadError` if the core has died, and the error of a request that the
        core has not taken; what else was new comes with the next step.
        """
        return self._thread.run(self._step())

    def has_unfinished_requests(self) -> bool:
        return bool(self._open) or bool(self._missed)

    def get_num_unfinished_requests(self) -> int:
        return len(self._open)

    async def _step(self) -> list[RequestOutput | PoolingRequestOutput]:
        outputs = self._take()
        if not outputs and self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_STEP_SECONDS):
                    await self._is_ready.wait()
            outputs = self._take()
        return outputs

    def _take(self) -> list[RequestOutput | PoolingRequestOutput]:
        self._is_ready.clear()
        outputs, self._missed = self._missed, []
        for request_id, stream in list(self._open.items()):
            try:
                output = stream.get_nowait()
            except Exception:
                del self._open[request_id]
                self._missed = outputs
                raise
            if output is not None:
                outputs.append(output)
                if output.finished:
                    del self._open[request_id]
        return outputs


def _end(engine: AsyncLLM, thread: LoopThread, timeout: float | None = None) -> None:
    async def shut_down() -> None:
        engine.shutdown(timeout)  # it may block this loop, in which nothing else happens
        readers = asyncio.all_tasks() - {asyncio.current_task()}
        if readers:  # they hear of it now
            await asyncio.wait(readers, timeout=MAX_STEP_SECONDS)

    if thread.is_current:  # the garbage collector has come to it here
        engine.shutdown(timeout)
    else:
        with contextlib.suppress(EngineDeadError):  # a forked child has no such thread
            thread.run(shut_down())
    thread.close()
