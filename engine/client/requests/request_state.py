"""`RequestState`: one open answer in the client, from its prompt to its last output."""

import logging
import math
import time
import uuid
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

import msgspec

from engine.client.parsing.marks import Marks
from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.parallel_sampling import ParentRequest
from engine.client.text.detokenizer import MAX_PIECES, Decoder, Detokenizer, token_text
from engine.ipc import AddRequest, SequenceOutput
from engine.logprobs import (
    FlatLogprobs,
    Logprob,
    PromptScores,
    PromptTokenIdScores,
    read_candidates,
)
from engine.lora import LoRARequest
from engine.outputs import (
    CompletionOutput,
    FinishReason,
    OutputError,
    RequestMetrics,
    RequestOutput,
    RequestProgress,
)
from engine.pooling import PoolingOutput, PoolingParams, PoolingRequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.tracing.request_trace import RequestTrace


@dataclass(slots=True)
class Submission:
    """What a core was asked for, and how that has gone."""

    request: AddRequest  # as it was sent first
    num_tokens: int = 0  # that it had when it was sent last
    num_in_vain: int = 0  # cores in a row that died under it before it had another token
    num_resubmits: int = 0
    sent_at: float = 0.0  # the last time, time.monotonic()


logger = logging.getLogger(__name__)

FINISH_REASONS = frozenset(get_args(FinishReason))

ProgressCallback = Callable[[RequestProgress], None]
# New text, its token ids, and their logprobs if they were asked for.
DeltaCallback = Callable[
    [str, list[int], "list[Mapping[int, Logprob]] | FlatLogprobs | None"], None
]


class RequestState:
    """One open request, from before its prompt is tokenized to its last output.

    With `n > 1` there is one for each answer, under a common parent: see `create_states`. It keeps
    all that is needed to send the request again to another core: prompt, parameters and every token
    so far.
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
        on_delta: DeltaCallback | None = None,
        metrics: RequestMetrics | None = None,
        parent: ParentRequest | None = None,
        index: int = 0,
        marks: Marks | None = None,
    ) -> None:
        self.request_id = request_id  # as the caller gave it
        self.internal_id = new_internal_id(request_id) if parent is None else parent.child_id(index)
        self.params = params
        self.pooling: PoolingParams | None = None  # wanted in the place of an answer
        self.lora_request: LoRARequest | None = None  # with the hash of its files
        self.parent = parent
        self.index = index  # of the answer, among those of its parent
        self._marks = marks  # that its text is to have; None: plain text
        self.prompt = prompt
        self.prompt_token_ids: list[int] = []
        self.shown_prompt_ids: list[int] | None = None  # made with the first output
        self.resume_token_ids: list[int] = []  # of an earlier run: already shown to somebody
        self.token_ids: list[int] = []  # of this run
        self.submission: Submission | None = None  # None: no core was asked yet
        self.in_core = False
        self.queue_position: int | None = None  # as the core said last; None: it has its turn
        self.is_aborting = False
        self.has_ended = False
        self.last_token_ts = 0.0  # monotonic; 0: it has none yet
        self.metrics = metrics or new_metrics(arrival_time)
        self.trace: RequestTrace | None = None  # ends when it does
        is_final_only = params.output_kind == RequestOutputKind.FINAL_ONLY
        self._interval = math.inf if is_final_only else params.stream_interval or 1  # in tokens
        self._collector = weakref.ref(collector)  # a reader that lets go ends the request
        self._on_progress = on_progress
        self._on_delta = on_delta  # takes all outputs but the last, as they come
        self._progress: tuple[Any, ...] = ()  # of the last report: its fields
        self._detokenizer: Detokenizer | None = None
        self._prompt_scores: PromptScores | None = None  # None: not asked for, or sent
        self._id_scores: PromptTokenIdScores | None = None  # likewise
        self._text = ""  # already emitted; kept unless deltas are asked for
        self._new_text = ""  # not yet emitted, as well as what follows
        self._new_token_ids: list[int] = []
        self._new_logprobs: list[Mapping[int, Logprob]] = []
        self._logprobs: list[Mapping[int, Logprob]] = []
        self._cumulative_logprob = 0.0
        self.num_cached_tokens = 0
        self.warnings: list[str] = []  # of its grammar

    def set_prompt(
        self, tokenizer: Decoder, token_ids: list[int], resume_token_ids: Sequence[int] = ()
    ) -> None:
        """Fix the prompt. The text of `resume_token_ids` was shown; what they held back was not."""
        self.prompt_token_ids = token_ids
        self.resume_token_ids = list(resume_token_ids)
        self._decoder = tokenizer
        if self.params.prompt_logprobs is not None:
            is_flat = self.params.flat_logprobs
            self._prompt_scores = PromptScores(
                token_ids, self._decode_one, max_before=MAX_PIECES, is_flat=is_flat
            )
        if rows := self.params.prompt_logprob_token_ids:
            num_rows = len(token_ids) - 1 - (self.params.prompt_logprob_start or 0)
            self._id_scores = PromptTokenIdScores(num_rows, len(rows[0]))
        if self.params.detokenize:
            self._detokenizer = new_detokenizer(tokenizer, token_ids, self.params, self._marks)
            self._detokenizer.resume(self.resume_token_ids)

    def remaining_params(self) -> SamplingParams:
        """For a core that goes on with it: without the prompt's logprobs, if they are here."""
        if not self.params.scores_prompt:
            return self.params
        scores = [each for each in (self._prompt_scores, self._id_scores) if each is not None]
        if any(not each.is_complete for each in scores):  # they are complete together
            for each in scores:
                each.restart()
            return self.params
        return msgspec.structs.replace(
            self.params,
            prompt_logprobs=None,
            prompt_logprob_token_ids=None,
            prompt_logprob_start=None,
        )

    def update(self, output: SequenceOutput) -> FinishReason | None:
        """Take up what the core did. Returns why the request has ended, if this ended it."""
        self._note_progress(output)
        self.warnings = output.warnings or self.warnings
        if self.is_aborting:
            return "abort" if output.finish_reason else None
        if self._prompt_scores is not None and output.prompt_logprobs is not None:
            self._prompt_scores.add(output.prompt_logprobs)
        if self._id_scores is not None and output.prompt_token_id_logprobs is not None:
            self._id_scores.add(output.prompt_token_id_logprobs)
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
            reason, error = "error", error or output_failed(self, exception)
        if reason not in ("abort", "error") and self.stop_string is not None:
            reason, stop_reason = "stop", self.stop_string
        if self.trace is not None:
            self.trace.end(self, reason, error.code if error else None)
        self._emit(reason, stop_reason, error)

    def fail(self, exception: Exception) -> None:
        """End without a last output: the reader gets an exception."""
        self.has_ended = True
        if self.trace is not None:
            self.trace.end(self, "error", type(exception).__name__)
        collector = self._collector()
        if collector is not None:
            collector.put(exception)

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found in the text."""
        found = None if self._detokenizer is None else self._detokenizer.stop
        if found is None or self._marks is None:
            return found
        stops = self.params.stop_strings
        return next(each for each in stops if self._marks.mark_shown(each) == found)

    def _detokenize(self, output: SequenceOutput) -> tuple[list[int], str | None]:
        token_ids = output.new_token_ids
        if self._detokenizer is None:
            return token_ids, None
        visible = token_ids
        if output.finish_reason == "stop" and not self.params.include_stop_str_in_output:
            # The token that stopped it has no text; but a parser may wait for its mark.
            visible = token_ids if self._ends_in_mark(token_ids) else token_ids[:-1]
        started = 0.0 if self.trace is None else time.monotonic()
        text, num_taken = self._detokenizer.feed(visible)
        if self.trace is not None:
            self.trace.made_text(started, time.monotonic())
        self._new_text += text
        if self._detokenizer.stop is not None:
            return token_ids[:num_taken], self._detokenizer.stop
        return token_ids, None

    def _ends_in_mark(self, token_ids: Sequence[int]) -> bool:
        marks = self._marks
        return marks is not None and bool(token_ids) and token_ids[-1] in marks.characters

    def _take_tokens(self, token_ids: list[int], logprobs: list[Any] | None) -> None:
        if not token_ids:
            return
        if logprobs:
            self._take_logprobs(token_ids, logprobs)
        self.token_ids += token_ids
        self._new_token_ids += token_ids
        self.metrics.num_generation_tokens += len(token_ids)
        self.metrics.last_token_ts = self.last_token_ts = time.monotonic()

    def _take_logprobs(self, token_ids: list[int], logprobs: list[Any]) -> None:
        """Those of new tokens, before these are taken."""
        before = [*self.resume_token_ids[-MAX_PIECES:], *self.token_ids[-MAX_PIECES:]]
        for token_id, position in zip(token_ids, logprobs, strict=False):
            decode = partial(self._decode_one, tuple(before[-MAX_PIECES:]))
            candidates, chosen_logprob = read_candidates(position, decode)
            self._cumulative_logprob += chosen_logprob
            self._new_logprobs.append(candidates)
            before.append(token_id)

    def _decode_one(self, before: Sequence[int], token_id: int) -> str | None:
        return token_text(self._decoder, token_id, before) if self.params.detokenize else None

    def _as_asked(
        self, logprobs: list[Mapping[int, Logprob]]
    ) -> list[Mapping[int, Logprob]] | FlatLogprobs | None:
        if self.params.logprobs is None:
            return None
        if not self.params.flat_logprobs:
            return logprobs
        flat = FlatLogprobs()
        flat.extend(logprobs)
        return flat

    def _add_prompt_scores(self, output: RequestOutput) -> None:
        """What this output has of the prompt; with deltas no later one has it."""
        scores, of_ids = self._prompt_scores, self._id_scores
        output.prompt_logprobs = None if scores is None else scores.get()
        output.prompt_token_id_logprobs = None if of_ids is None else of_ids.get()
        if self.params.output_kind is RequestOutputKind.DELTA:
            self._prompt_scores = scores if output.prompt_logprobs is None else None
            self._id_scores = of_ids if output.prompt_token_id_logprobs is None else None

    def _note_progress(self, output: SequenceOutput) -> None:
        metrics = self.metrics
        if (
            output.new_token_ids
            and metrics.first_token_ts
            and output.queue_position is self.queue_position is None
            and output.num_preemptions == metrics.num_preemptions
        ):
            return  # one more token: so it is with most outputs, of which there are very many
        self.queue_position = output.queue_position
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        metrics.scheduled_ts = metrics.scheduled_ts or output.scheduled_ts
        if output.first_token_ts and not metrics.first_token_ts:
            metrics.first_token_ts = output.first_token_ts
            metrics.first_token_latency = output.first_token_ts - metrics.queued_ts
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if self._on_progress is None or self.is_aborting:
            return
        progress = (
            output.queue_position,
            len(self.prompt_token_ids),
            self.num_cached_tokens,
            output.num_computed_tokens,
            metrics.scheduled_ts > 0,
            output.num_tokens_ahead,
            output.is_waking,
        )
        if progress != self._progress:
            self._progress = progress
            self._on_progress(RequestProgress(*progress))

    def _is_due(self) -> bool:
        num_new = len(self._new_token_ids)
        if num_new >= self._interval:
            return True
        return 0 < num_new == len(self.token_ids) and self._interval < math.inf  # the first

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
        if self._on_delta is not None and reason is None:
            self._on_delta(text, token_ids, self._as_asked(logprobs))
            return
        if self.params.output_kind != RequestOutputKind.DELTA:
            self._text += text
            self._logprobs += logprobs
            text, token_ids, logprobs = self._text, list(self.token_ids), list(self._logprobs)
        completion = CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=None if self.params.logprobs is None else self._cumulative_logprob,
            logprobs=self._as_asked(logprobs),
            finish_reason=reason,
            stop_reason=stop_reason,
        )
        output = RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self._shown_prompt(),
            prompt_logprobs=None,
            outputs=[completion],
            finished=reason is not None,
            metrics=self.metrics,
            lora_request=self.lora_request,
            num_cached_tokens=self.num_cached_tokens,
            error=error,
            warnings=self.warnings,
        )
        if self._prompt_scores is not None or self._id_scores is not None:
            self._add_prompt_scores(output)
        joined = output if self.parent is None else self.parent.join(output, len(self.token_ids))
        if joined is not None:
            collector.put(joined)

    def _shown_prompt(self) -> list[int]:
        """One list for all outputs of the request: the caller's, who may change it."""
        holder = self.parent or self
        if holder.shown_prompt_ids is None:
            holder.shown_prompt_ids = list(self.prompt_token_ids)
        return holder.shown_prompt_ids


class PoolingState(RequestState):
    """One open embedding request. It has no tokens, and one output, which is its last."""

    def __init__(
        self,
        request_id: Any,
        pooling: PoolingParams,
        collector: RequestOutputCollector,
        *,
        prompt: str | None = None,
        arrival_time: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        super().__init__(
            request_id,
            SamplingParams(max_tokens=1, detokenize=False, seed=0),  # what every request has
            collector,
            prompt=prompt,
            arrival_time=arrival_time,
            on_progress=on_progress,
        )
        self.pooling = pooling
        self._embedding = array("f")

    def update(self, output: SequenceOutput) -> FinishReason | None:
        if output.embedding is not None:
            self._embedding = array("f", output.embedding)
        return super().update(output)

    def _emit(
        self,
        reason: FinishReason | None,
        stop_reason: int | str | None,
        error: OutputError | None,
    ) -> None:
        collector = self._collector()
        if collector is None:
            return
        is_whole = reason == "stop"  # not that of a request that was aborted a moment before
        collector.put(
            PoolingRequestOutput(
                request_id=self.request_id,
                outputs=PoolingOutput(self._embedding.tolist() if is_whole else []),
                prompt_token_ids=self._shown_prompt(),
                num_cached_tokens=self.num_cached_tokens,
                finished=True,
                error=error,
                finish_reason=reason,
                metrics=self.metrics,
            )
        )


def create_states(
    request_id: Any,
    params: SamplingParams | PoolingParams,
    collector: RequestOutputCollector,
    *,
    prompt: str | None = None,
    arrival_time: float | None = None,
    on_progress: ProgressCallback | None = None,
    on_delta: DeltaCallback | None = None,
    marks: Marks | None = None,
) -> list[RequestState]:
    """The open answers to one request: `params.n` of them; one reports the prompt's progress.

    `on_delta` is for a single answer in deltas, and so are `marks`, which its text then has.

    A prompt that is pooled has one state, too.
    """
    if isinstance(params, PoolingParams):
        pooled = PoolingState(
            request_id,
            params,
            collector,
            prompt=prompt,
            arrival_time=arrival_time,
            on_progress=on_progress,
        )
        return [pooled]
    if params.n == 1:
        single = RequestState(
            request_id,
            params,
            collector,
            prompt=prompt,
            arrival_time=arrival_time,
            on_progress=on_progress,
            on_delta=on_delta,
            marks=marks,
        )
        return [single]
    parent = ParentRequest(new_internal_id(request_id), params)
    metrics = new_metrics(arrival_time)  # of all together
    return [
        RequestState(
            request_id,
            parent.child_params(index),
            collector,
            prompt=prompt,
            on_progress=None if index else on_progress,
            metrics=metrics,
            parent=parent,
            index=index,
        )
        for index in range(params.n)
    ]


def new_detokenizer(
    tokenizer: Decoder,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    marks: Marks | None = None,
) -> Detokenizer:
    """What makes the text of a request with these parameters; marked text, with `marks`."""
    stops = params.stop_strings
    return Detokenizer(
        tokenizer,
        prompt_token_ids,
        stops=stops if marks is None else [marks.mark_shown(each) for each in stops],
        include_stop=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        mark_characters=None if marks is None else marks.characters,
    )


def new_internal_id(request_id: Any) -> str:
    """An id that no other request ever has, however often the caller's is used again."""
    return f"{request_id}-{uuid.uuid4().hex[:8]}"


def new_metrics(arrival_time: float | None) -> RequestMetrics:
    return RequestMetrics(
        arrival_time=time.time() if arrival_time is None else arrival_time,
        queued_ts=time.monotonic(),
    )


def output_failed(state: RequestState, exception: Exception) -> OutputError:
    """What a request ends with when its outputs cannot be made."""
    logger.error("output failed", exc_info=exception, extra={"request_id": state.internal_id})
    return OutputError("output_failed", f"{type(exception).__name__}: {exception}")
