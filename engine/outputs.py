"""What a stream yields: `RequestOutput` with one or more `CompletionOutput`, and how two merge.

A request holds at most one output that nobody has taken yet; `RequestOutput.add` joins the next one
to it, so a slow reader costs memory for its text and not for its lateness.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from engine.logprobs import FlatLogprobs, Logprob, PromptLogprobs

if TYPE_CHECKING:  # it takes a while to import, and few need it
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


@dataclass(frozen=True, slots=True)
class OutputError:
    """Why an accepted request ended with finish reason `error`."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """An engine's own figures of a request, where `token_ids` are not the ids of its tokens."""

    num_prompt: int
    num_cached: int  # of them, those that were found in a cache
    num_output: int


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far a request is before and during its prefill; given to `generate(on_progress=)`."""

    queue_position: int | None  # requests ahead of it; None once scheduled
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    scheduled: bool
    num_tokens_ahead: int = 0  # in the requests ahead of it
    is_waking: bool = False  # it waits for the engine, which was asleep


@dataclass(slots=True)
class RequestMetrics:
    """Times and counts of one request: `*_ts` monotonic, `arrival_time` wall clock, in seconds."""

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    core_confirmed: bool = True  # False: the core was silent and the client ended the request alone
    num_resubmits: int = 0


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt: all of it, or what is new, as `SamplingParams.output_kind` says."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[Mapping[int, Logprob]] | FlatLogprobs | None = None
    routed_experts: Any = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or string, or the repetition
    lora_request: Any = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, later: "CompletionOutput") -> None:
        """Append a later delta of the same answer."""
        self.text += later.text
        self.token_ids.extend(later.token_ids)
        if later.logprobs is not None:
            self.logprobs = self.logprobs if self.logprobs is not None else []
            self.logprobs.extend(later.logprobs)
        if later.routed_experts is not None:
            self.routed_experts = later.routed_experts
        self.cumulative_logprob = later.cumulative_logprob
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason


@dataclass(slots=True, init=False)
class RequestOutput:
    """One item of a stream. `finished` is True exactly once, on the last one."""

    request_id: Any
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None
    lora_request: Any
    encoder_prompt: str | None
    encoder_prompt_token_ids: list[int] | None
    num_cached_tokens: int | None
    num_cache_creation_tokens: int | None
    kv_transfer_params: dict[str, Any] | None
    # [num_rows, num_ids], of `SamplingParams.prompt_logprob_token_ids`
    prompt_token_id_logprobs: "npt.NDArray[np.float32] | None" = field(default=None, compare=False)
    error: OutputError | None = field(default=None)
    warnings: list[str] = field(default_factory=list)  # what a grammar cannot hold the answer to
    counts: TokenCounts | None = None  # None: the ids say it
    # index → place in `outputs`, made with the first `add`
    _places: dict[int, int] | None = field(default=None, repr=False, compare=False)

    def __init__(
        self,
        request_id: Any,
        prompt: str | None,
        prompt_token_ids: list[int] | None,
        prompt_logprobs: PromptLogprobs | None,
        outputs: list[CompletionOutput],
        finished: bool,
        metrics: RequestMetrics | None = None,
        lora_request: Any = None,
        encoder_prompt: str | None = None,
        encoder_prompt_token_ids: list[int] | None = None,
        num_cached_tokens: int | None = None,
        num_cache_creation_tokens: int | None = None,
        *,
        prompt_token_id_logprobs: "npt.NDArray[np.float32] | None" = None,
        kv_transfer_params: dict[str, Any] | None = None,
        error: OutputError | None = None,
        warnings: list[str] | None = None,
        counts: TokenCounts | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            logger.warning("RequestOutput ignores %s", ", ".join(sorted(unknown)))
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.prompt_token_id_logprobs = prompt_token_id_logprobs
        self.outputs = outputs
        self.finished = finished
        self.metrics = metrics
        self.lora_request = lora_request
        self.encoder_prompt = encoder_prompt
        self.encoder_prompt_token_ids = encoder_prompt_token_ids
        self.num_cached_tokens = num_cached_tokens
        self.num_cache_creation_tokens = num_cache_creation_tokens
        self.kv_transfer_params = kv_transfer_params
        self.error = error
        self.warnings = warnings or []
        self.counts = counts
        self._places = None

    def add(self, later: "RequestOutput", aggregate: bool) -> None:
        """Take up a later output of the same request: deltas join, others replace by index."""
        self.finished |= later.finished
        self.metrics = later.metrics or self.metrics
        self.error = later.error or self.error
        self.warnings = later.warnings or self.warnings
        self.counts = later.counts or self.counts
        self.kv_transfer_params = later.kv_transfer_params or self.kv_transfer_params
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        if later.prompt_token_id_logprobs is not None:
            self.prompt_token_id_logprobs = later.prompt_token_id_logprobs
        if later.num_cached_tokens is not None:
            self.num_cached_tokens = later.num_cached_tokens
        for completion in later.outputs:
            self._add_completion(completion, aggregate)

    def _add_completion(self, later: CompletionOutput, aggregate: bool) -> None:
        if self._places is None:
            self._places = {each.index: place for place, each in enumerate(self.outputs)}
        place = self._places.setdefault(later.index, len(self.outputs))
        if place == len(self.outputs):
            self.outputs.append(later)
        elif aggregate:
            self.outputs[place].extend(later)
        else:
            self.outputs[place] = later
