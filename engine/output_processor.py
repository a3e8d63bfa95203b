"""Step outputs of the core → `RequestOutput`s for whoever reads them.

A `RequestState` is one open request; `OutputProcessor` holds them all, by internal id, and by the
caller's id while that id is taken. Whatever ends a request goes through `OutputProcessor.end`,
which emits its one last output. Nothing here knows the socket: what the core must be told is
returned.
"""

import asyncio
import logging
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast, get_args

from engine.detokenizer import Decoder, Detokenizer
from engine.errors import ValidationError
from engine.ipc import SequenceOutput
from engine.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputError,
    RequestMetrics,
    RequestOutput,
    RequestProgress,
)
from engine.sampling_params import RequestOutputKind, SamplingParams

logger = logging.getLogger(__name__)

FINISH_REASONS = frozenset(get_args(FinishReason))

ProgressCallback = Callable[[RequestProgress], None]


class RequestOutputCollector:
    """The reader's end of one request: at most one output waits in it, later ones merge into it.

    Iterate it, or call `get`. `close`, or letting go of it, aborts the request if it still runs.
    """

    def __init__(self, output_kind: RequestOutputKind, request_id: Any) -> None:
        self.request_id = request_id
        self.output: RequestOutput | Exception | None = None
        self.ready = asyncio.Event()
        self._aggregate = output_kind == RequestOutputKind.DELTA
        self._has_ended = False
        self._on_close: Callable[[], None] | None = None

    def put(self, output: RequestOutput | Exception) -> None:
        """Add an output; an exception takes the place of what waits."""
        if isinstance(output, RequestOutput) and isinstance(self.output, RequestOutput):
            self.output.add(output, aggregate=self._aggregate)
        elif not isinstance(self.output, Exception):
            self.output = output
            self.ready.set()

    async def get(self) -> RequestOutput:
        """The waiting output, or the next one. May be cancelled; no output is lost by it."""
        while (output := self.get_nowait()) is None:
            await self.ready.wait()
        return output

    def get_nowait(self) -> RequestOutput | None:
        """The waiting output, or None. Raises what ended the stream, if that is what waits."""
        output, self.output = self.output, None
        self.ready.clear()
        if isinstance(output, Exception):
            self._has_ended = True
            raise output
        if output is not None:
            self._has_ended = output.finished
        return output

    def close(self) -> None:
        """Leave: the request is aborted if it still runs, and nothing more comes. Idempotent."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def call_on_close(self, callback: Callable[[], None]) -> None:
        self._on_close = callback

    def __aiter__(self) -> "RequestOutputCollector":
        return self

    async def __anext__(self) -> RequestOutput:
        if self._has_ended:
            raise StopAsyncIteration
        return await self.get()

    def __del__(self) -> None:
        self.close()


class RequestState:
    """One open request, from before its prompt is tokenized to its last output.

    It keeps all that is needed to send the request again to another core: prompt, parameters and
    every token so far.
    """

    def __init__(
        self,
        request_id: Any,
        params: SamplingParams,
        collector: RequestOutputCollector,
        *,
        prompt: str | None = None,
        arrival_time: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        self.request_id = request_id  # as the caller gave it
        self.internal_id = f"{request_id}-{uuid.uuid4().hex[:8]}"
        self.params = params
        self.prompt = prompt
        self.prompt_token_ids: list[int] = []
        self.resume_token_ids: list[int] = []  # of an earlier run: already shown to somebody
        self.token_ids: list[int] = []  # of this run
        self.in_core = False
        self.is_aborting = False
        self.has_ended = False
        self.metrics = RequestMetrics(
            arrival_time=time.time() if arrival_time is None else arrival_time,
            queued_ts=time.monotonic(),
        )
        self._collector = weakref.ref(collector)  # a reader that lets go ends the request
        self._on_progress = on_progress
        self._progress: RequestProgress | None = None
        self._detokenizer: Detokenizer | None = None
        self._text = ""  # already emitted; kept unless deltas are asked for
        self._new_text = ""  # not yet emitted, as well as what follows
        self._new_token_ids: list[int] = []
        self._new_logprobs: list[dict[int, Logprob]] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob = 0.0
        self._num_cached_tokens = 0

    def set_prompt(
        self, tokenizer: Decoder, token_ids: list[int], resume_token_ids: Sequence[int] = ()
    ) -> None:
        """Fix the prompt. The text of `resume_token_ids` was shown; what they held back was not."""
        self.prompt_token_ids = token_ids
        self.resume_token_ids = list(resume_token_ids)
        self._decoder = tokenizer
        if self.params.detokenize:
            self._detokenizer = Detokenizer(
                tokenizer,
                token_ids,
                stops=self.params.stop_strings,
                include_stop=self.params.include_stop_str_in_output,
                min_tokens=self.params.min_tokens,
                skip_special_tokens=self.params.skip_special_tokens,
            )
            self._detokenizer.resume(self.resume_token_ids)

    def update(self, output: SequenceOutput) -> FinishReason | None:
        """Take up what the core did. Returns why the request has ended, if this ended it."""
        self._note_progress(output)
        if self.is_aborting:
            return "abort" if output.finish_reason else None
        token_ids, stop = self._detokenize(output)
        self._take_tokens(token_ids, output.logprobs)
        if stop is not None:
            return "stop"
        if output.finish_reason is not None:
            reason = output.finish_reason
            return cast(FinishReason, reason) if reason in FINISH_REASONS else "error"
        if self._is_due():
            self._emit(None, None, None)
        return None

    def end(
        self,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        error: OutputError | None = None,
    ) -> None:
        """Emit the last output, with all that was held back. Only the first call does anything."""
        if self.has_ended:
            return
        self.has_ended = True
        try:
            if self._detokenizer is not None and self._detokenizer.stop is None:
                self._new_text += self._detokenizer.finish()
        except Exception as exception:
            reason, error = "error", error or _output_failed(self, exception)
        if reason not in ("abort", "error") and self.stop_string is not None:
            reason, stop_reason = "stop", self.stop_string
        self._emit(reason, stop_reason, error)

    def fail(self, exception: Exception) -> None:
        """End without a last output: the reader gets an exception."""
        self.has_ended = True
        collector = self._collector()
        if collector is not None:
            collector.put(exception)

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found in the text."""
        return self._detokenizer.stop if self._detokenizer is not None else None

    def _detokenize(self, output: SequenceOutput) -> tuple[list[int], str | None]:
        token_ids = output.new_token_ids
        if self._detokenizer is None:
            return token_ids, None
        visible = token_ids
        if output.finish_reason == "stop" and not self.params.include_stop_str_in_output:
            visible = token_ids[:-1]  # the token that stopped it has no text
        text, num_taken = self._detokenizer.feed(visible)
        self._new_text += text
        if self._detokenizer.stop is not None:
            return token_ids[:num_taken], self._detokenizer.stop
        return token_ids, None

    def _take_tokens(self, token_ids: list[int], logprobs: list[Any] | None) -> None:
        if not token_ids:
            return
        self.token_ids += token_ids
        self._new_token_ids += token_ids
        self.metrics.num_generation_tokens += len(token_ids)
        self.metrics.last_token_ts = time.monotonic()
        for entries in (logprobs or [])[: len(token_ids)]:
            self._cumulative_logprob += entries[0][1]  # the token that was chosen comes first
            self._new_logprobs.append({i: self._logprob(i, p, rank) for i, p, rank in entries})

    def _logprob(self, token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, self._decoder.decode([token_id]))

    def _note_progress(self, output: SequenceOutput) -> None:
        metrics = self.metrics
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        metrics.scheduled_ts = output.scheduled_ts or metrics.scheduled_ts
        if output.first_token_ts and not metrics.first_token_ts:
            metrics.first_token_ts = output.first_token_ts
            metrics.first_token_latency = output.first_token_ts - metrics.queued_ts
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        if self._on_progress is None or self.is_aborting:
            return
        progress = RequestProgress(
            queue_position=output.queue_position,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_cached_tokens=self._num_cached_tokens,
            num_computed_tokens=output.num_computed_tokens,
            scheduled=metrics.scheduled_ts > 0,
        )
        if progress != self._progress:
            self._progress = progress
            self._on_progress(progress)

    def _is_due(self) -> bool:
        num_new = len(self._new_token_ids)
        if self.params.output_kind == RequestOutputKind.FINAL_ONLY or num_new == 0:
            return False
        is_first = num_new == len(self.token_ids)
        return is_first or num_new >= (self.params.stream_interval or 1)

    def _emit(
        self,
        reason: FinishReason | None,
        stop_reason: int | str | None,
        error: OutputError | None,
    ) -> None:
        collector = self._collector()
        if collector is None:
            return
        text, token_ids, logprobs = self._new_text, self._new_token_ids, self._new_logprobs
        self._new_text, self._new_token_ids, self._new_logprobs = "", [], []
        if self.params.output_kind != RequestOutputKind.DELTA:
            self._text += text
            self._logprobs += logprobs
            text, token_ids, logprobs = self._text, list(self.token_ids), list(self._logprobs)
        with_logprobs = self.params.logprobs is not None
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self._cumulative_logprob if with_logprobs else None,
            logprobs=logprobs if with_logprobs else None,
            finish_reason=reason,
            stop_reason=stop_reason,
        )
        collector.put(
            RequestOutput(
                request_id=self.request_id,
                prompt=self.prompt,
                prompt_token_ids=self.prompt_token_ids,
                prompt_logprobs=None,
                outputs=[completion],
                finished=reason is not None,
                metrics=self.metrics,
                num_cached_tokens=self._num_cached_tokens,
                error=error,
            )
        )


class OutputProcessor:
    """All open requests of one client."""

    def __init__(self) -> None:
        self.request_states: dict[str, RequestState] = {}  # by internal id
        self._external_to_internal: dict[str, str] = {}

    def has_unfinished_requests(self) -> bool:
        return bool(self.request_states)

    def add(self, state: RequestState) -> None:
        """Take the request's id. `ValidationError` if another open request has it."""
        external = str(state.request_id)
        if external in self._external_to_internal:
            problem = f"a request with the id {external!r} is open already"
            raise ValidationError(problem, "request_id", state.request_id)
        self._external_to_internal[external] = state.internal_id
        self.request_states[state.internal_id] = state

    def find(self, request_id: Any, *, internal: bool = False) -> RequestState | None:
        key = str(request_id)
        if not internal:
            key = self._external_to_internal.get(key, "")
        return self.request_states.get(key)

    def process(self, outputs: Iterable[SequenceOutput]) -> list[str]:
        """Hand outputs to their requests. Returns the internal ids that the core must still stop.

        Whatever goes wrong with one request ends that one, with finish reason `error`.
        """
        to_stop = []
        for output in outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue  # it has ended here, the core just did not know yet
            try:
                reason = state.update(output)
                error = OutputError(*output.error) if output.error else None
            except Exception as exception:
                reason, error = "error", _output_failed(state, exception)
            if reason is not None:
                if output.finish_reason is None:
                    to_stop.append(state.internal_id)
                self.end(state, reason, stop_reason=output.stop_reason, error=error)
        return to_stop

    def start_abort(self, state: RequestState) -> None:
        """From now on the request takes no token, and its id is free for another."""
        state.is_aborting = True
        self._release_id(state)

    def end(
        self,
        state: RequestState,
        reason: FinishReason,
        *,
        stop_reason: int | str | None = None,
        error: OutputError | None = None,
    ) -> None:
        """Emit the request's last output and forget it. Only the first end counts."""
        self.discard(state)
        state.end(reason, stop_reason, error)

    def fail(self, state: RequestState, exception: Exception) -> None:
        """End a request by an exception in its reader."""
        self.discard(state)
        state.fail(exception)

    def discard(self, state: RequestState) -> None:
        """Forget a request, without a word to its reader. Idempotent."""
        self.request_states.pop(state.internal_id, None)
        self._release_id(state)

    def _release_id(self, state: RequestState) -> None:
        external = str(state.request_id)
        if self._external_to_internal.get(external) == state.internal_id:
            del self._external_to_internal[external]


def _output_failed(state: RequestState, exception: Exception) -> OutputError:
    logger.error("output failed", exc_info=exception, extra={"request_id": state.internal_id})
    return OutputError("output_failed", f"{type(exception).__name__}: {exception}")


def merge_outputs(earlier: SequenceOutput, later: SequenceOutput) -> SequenceOutput:
    """Two outputs of one request as one, so that their tokens are decoded together."""
    logprobs = None
    if earlier.logprobs is not None or later.logprobs is not None:
        logprobs = [*(earlier.logprobs or []), *(later.logprobs or [])]
    return SequenceOutput(
        request_id=later.request_id,
        new_token_ids=[*earlier.new_token_ids, *later.new_token_ids],
        finish_reason=later.finish_reason,
        stop_reason=later.stop_reason,
        error=later.error,
        logprobs=logprobs,
        num_cached_tokens=later.num_cached_tokens,
        num_computed_tokens=later.num_computed_tokens,
        num_preemptions=later.num_preemptions,
        queue_position=later.queue_position,
        scheduled_ts=later.scheduled_ts,
        first_token_ts=later.first_token_ts,
    )
