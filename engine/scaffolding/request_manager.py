"""Requests by their ids: add one, abort it, ask how it is; and text as it is generated.

`RequestManager` is for callers who do not hold on to a stream: it holds the reader's end for them.
What is read through `stream` is taken from there; what nobody reads waits, merged to one output.
"""

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from engine.client.async_llm import AsyncLLM
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.inputs import Prompt
from engine.errors import EngineGenerateError, ValidationError
from engine.outputs import RequestOutput, RequestProgress
from engine.sampling_params import RequestOutputKind, SamplingParams

NUM_ENDED_KEPT = 1000


class RequestStatus(str, Enum):  # noqa: UP042  (vLLM's form, whose str() is the member's name)
    """Where a request is. Preempted counts as running, ended by `stop` or length as completed."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        return self not in (RequestStatus.WAITING, RequestStatus.RUNNING)


@dataclass
class StreamingRequest:
    """A request as it was given to a `RequestManager`; `arrival_time` is wall clock, in seconds."""

    request_id: Any
    prompt: Prompt
    sampling_params: SamplingParams
    arrival_time: float = field(default_factory=time.time)
    lora_request: Any = None


class RequestManager:
    """The requests of one engine that were added here; its last 1,000 ended ones stay known."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._open: dict[str, _Record] = {}  # some of them have ended since the last was added
        self._ended: dict[str, _Record] = {}  # oldest first

    async def add_request(
        self,
        request_id: Any,
        prompt: Prompt,
        sampling_params: SamplingParams,
        prompt_token_ids: list[int] | None = None,
        arrival_time: float | None = None,
        lora_request: Any = None,
    ) -> None:
        """Send a request. An id may be used again after its request has ended.

        Raises what `AsyncLLM.add_request` raises, and then knows nothing of the request.
        """
        arrival_time = time.time() if arrival_time is None else arrival_time
        progress = _Progress()
        collector = await self._engine.add_request(
            request_id,
            prompt,
            sampling_params,
            arrival_time,
            prompt_token_ids=prompt_token_ids,
            lora_request=lora_request,
            on_progress=progress.update,
        )
        self._put_ended_aside()
        request = StreamingRequest(request_id, prompt, sampling_params, arrival_time, lora_request)
        self._ended.pop(str(request_id), None)
        self._open[str(request_id)] = _Record(request, collector, progress)

    async def abort_request(self, request_id: Any) -> None:
        """Cancel a request; unknown and ended ids are ignored."""
        record = self._open.get(str(request_id))
        if record is not None and not record.status().has_ended:
            record.is_cancelled = True
            await self._engine.abort(request_id)

    async def get_request_status(self, request_id: Any) -> RequestStatus:
        """How a request is now. `KeyError` for an id that was never added, or long ago."""
        return self._find(request_id).status()

    def get_request(self, request_id: Any) -> StreamingRequest:
        """The request as it was added. `KeyError` as above."""
        return self._find(request_id).request

    async def stream(self, request_id: Any) -> AsyncGenerator[RequestOutput, None]:
        """What has not been read of a request's outputs, up to the last one.

        Leaving it aborts nothing: the request belongs to the manager, and another `stream` goes on.
        Raises `EngineDeadError` if the core has died, `KeyError` as above.
        """
        record = self._find(request_id)
        while (output := await record.read()) is not None:
            yield output

    def _find(self, request_id: Any) -> "_Record":
        key = str(request_id)
        return self._open[key] if key in self._open else self._ended[key]

    def _put_ended_aside(self) -> None:
        for key in [key for key, record in self._open.items() if record.status().has_ended]:
            self._ended[key] = self._open.pop(key)
        for key in list(self._ended)[:-NUM_ENDED_KEPT]:
            del self._ended[key]


class _Progress:
    """Whether the core has begun with a request. The engine holds it, so it holds no stream."""

    def __init__(self) -> None:
        self.is_scheduled = False

    def update(self, progress: RequestProgress) -> None:
        self.is_scheduled = self.is_scheduled or progress.scheduled


class _Record:
    """One request and the reader's end of it."""

    def __init__(
        self, request: StreamingRequest, collector: RequestOutputCollector, progress: _Progress
    ) -> None:
        self.request = request
        self.is_cancelled = False
        self._collector = collector
        self._progress = progress
        self._end: RequestStatus | None = None

    def status(self) -> RequestStatus:
        self._note_end(self._collector.output)
        if self._end is not None:
            return self._end
        if self.is_cancelled:
            return RequestStatus.CANCELLED
        return RequestStatus.RUNNING if self._progress.is_scheduled else RequestStatus.WAITING

    async def read(self) -> RequestOutput | None:
        """The next output; None after the last."""
        try:
            output = await self._collector.get_or_end()
        except Exception:
            self._end = RequestStatus.FAILED
            raise
        self._note_end(output)
        return output

    def _note_end(self, output: RequestOutput | Exception | None) -> None:
        if self._end is not None or output is None:
            return
        if isinstance(output, Exception):
            self._end = RequestStatus.FAILED
        elif output.finished:
            self._end = _end_status(output)


def _end_status(output: RequestOutput) -> RequestStatus:
    reasons = {completion.finish_reason for completion in output.outputs}
    if "error" in reasons or output.error is not None:
        return RequestStatus.FAILED
    return RequestStatus.CANCELLED if "abort" in reasons else RequestStatus.COMPLETED


async def stream_generate(
    engine: AsyncLLM, prompt: Prompt, sampling_params: SamplingParams, request_id: Any
) -> AsyncGenerator[str, None]:
    """Yield the answer's text in pieces, as they are generated, for any `output_kind`.

    The pieces joined are the whole text; an aborted request just ends. Raises
    `EngineGenerateError` for a request that failed, `ValidationError` with `n > 1`, and what
    `AsyncLLM.generate` raises. Leaving it in any way (break and `aclose`, cancellation) aborts.
    """
    if sampling_params.n > 1:
        raise ValidationError("n must be 1 for a stream of text", "n", sampling_params.n)
    params = msgspec.structs.replace(sampling_params, output_kind=RequestOutputKind.DELTA)
    async with contextlib.aclosing(engine.generate(prompt, params, request_id)) as outputs:
        async for output in outputs:
            for completion in output.outputs:
                if completion.text:
                    yield completion.text
            if output.error is not None:
                raise EngineGenerateError(output.error.message)
