"""`RequestTrace`: one request as spans, `llm_request` and in it `queue`, `prefill` and `decode`.

They are made when the request has ended, of the times that it reports: the core knows nothing of
them. The names of span and attributes are vLLM's, beside those that OpenTelemetry has settled on
since. Text is made of tokens while others are decoded, so that `detokenize` lies across `decode`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import refuse
from engine.lora import LoRARequest
from engine.outputs import RequestMetrics
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.tracing.tracing import Attributes, Tracing

_LATENCY = {"queue": "queue", "prefill": "model_prefill", "decode": "model_decode"}


class Traced(Protocol):
    """What spans say of a request: no text, and no token."""

    @property
    def request_id(self) -> Any: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def lora_request(self) -> LoRARequest | None: ...
    @property
    def metrics(self) -> RequestMetrics: ...
    @property
    def prompt_token_ids(self) -> Sequence[int]: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def last_token_ts(self) -> float: ...
    @property
    def trace(self) -> RequestTrace | None: ...


class RequestTrace:
    """`headers` name the caller's span. `model` answers where no adapter does. `arrival_time`, if
    given, is wall clock, in seconds.
    """

    def __init__(
        self,
        tracing: Tracing,
        headers: Mapping[str, str] | None,
        model: str,
        arrival_time: float | None = None,
    ) -> None:
        if headers is not None and not isinstance(headers, Mapping):
            raise refuse("trace_headers", headers, "must be a mapping of header names")
        tracing.follow_clock()
        self._tracing = tracing
        self._parent = tracing.context(headers or {})
        self._model = model
        self._arrival_time = arrival_time
        self._has_ended = False
        self._text_times = (0.0, 0.0)  # when the first and the last text was made, monotonic
        self._text_seconds = 0.0

    def made_text(self, start: float, end: float) -> None:
        """Tokens became text from then to then, monotonic seconds."""
        self._text_times = (self._text_times[0] or start, end)
        self._text_seconds += end - start

    def end(self, request: Traced, reason: str, error: str | None = None) -> None:
        """The request has ended, with this finish reason; only the first end counts."""
        if self._has_ended:
            return
        self._has_ended = True
        tracing, now, metrics = self._tracing, time.monotonic(), request.metrics
        start_ns = tracing.ns(metrics.queued_ts)
        if self._arrival_time is not None:
            start_ns = min(start_ns, int(self._arrival_time * 1e9))
        span = tracing.start("llm_request", self._parent, start_ns, self._asked(request))
        phases = _phases(request, now)
        for name, (start, end) in phases.items():
            tracing.child(span, name, tracing.ns(start), tracing.ns(end))
        if self._text_seconds:
            start, end = map(tracing.ns, self._text_times)
            took = {"parley.detokenize.seconds": self._text_seconds}
            tracing.child(span, "detokenize", start, end, took)
        latency = _latency(phases)
        latency["gen_ai.latency.e2e"] = (tracing.ns(now) - start_ns) / 1e9
        tracing.end(span, tracing.ns(now), {**_used(request, reason), **latency}, error)

    def _asked(self, request: Traced) -> Attributes:
        params, lora = request.params, request.lora_request
        model = self._model if lora is None else lora.lora_name
        asked: dict[str, str | int | float] = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "parley",
            "gen_ai.request.id": str(request.request_id),
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.n": params.n,
        }
        if params.max_tokens is not None:
            asked["gen_ai.request.max_tokens"] = params.max_tokens
        return asked


def end_traces(requests: Sequence[Traced], error: BaseException) -> None:
    """This came instead of an end. A reader that has left is no error."""
    for request in requests:
        if request.trace is not None and isinstance(error, Exception):
            request.trace.end(request, "error", type(error).__name__)


def _phases(request: Traced, now: float) -> dict[str, tuple[float, float]]:
    """Those that the request has entered, each with its start and end, monotonic seconds."""
    metrics = request.metrics
    phases = {"queue": (metrics.queued_ts, metrics.scheduled_ts or now)}
    if metrics.scheduled_ts:
        phases["prefill"] = (metrics.scheduled_ts, metrics.first_token_ts or now)
    if metrics.first_token_ts:
        phases["decode"] = (metrics.first_token_ts, request.last_token_ts or now)
    return phases


def _latency(phases: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Seconds of each phase, and up to the first token."""
    latency = {
        f"gen_ai.latency.time_in_{_LATENCY[name]}": end - start
        for name, (start, end) in phases.items()
    }
    if "decode" in phases:
        first, last = phases["decode"]
        latency["gen_ai.latency.time_to_first_token"] = first - phases["queue"][0]
        latency["gen_ai.latency.time_in_model_inference"] = last - phases["prefill"][0]
    return latency


def _used(request: Traced, reason: str) -> dict[str, Any]:
    num_prompt, num_answer = len(request.prompt_token_ids), len(request.token_ids)
    return {
        "gen_ai.usage.prompt_tokens": num_prompt,
        "gen_ai.usage.completion_tokens": num_answer,
        "gen_ai.usage.input_tokens": num_prompt,
        "gen_ai.usage.output_tokens": num_answer,
        "gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens,
        "gen_ai.response.finish_reasons": [reason],
        "parley.num_preemptions": request.metrics.num_preemptions,
        "parley.num_resubmits": request.metrics.num_resubmits,
    }
