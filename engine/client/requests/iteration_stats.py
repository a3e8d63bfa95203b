"""`IterationStats`: what became of a client's requests in one batch of outputs, for stat loggers.

The names are vLLM's. A batch is what one step of the core did; it is that of several steps where
the event loop was late, because outputs that wait are joined. Times are seconds.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from engine.client.requests.request_state import RequestState
from engine.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class FinishedRequestStats:
    """One answer that has ended."""

    finish_reason: FinishReason
    request_id: Any  # the caller's
    e2e_latency: float  # since its arrival
    num_prompt_tokens: int
    num_preemptions: int
    num_generation_tokens: int
    max_tokens_param: int | None
    queued_time: float
    prefill_time: float  # from its first step to its first token
    inference_time: float  # from its first step to its last token
    decode_time: float  # from its first token to its last
    mean_time_per_output_token: float
    num_cached_tokens: int


@dataclass(slots=True)
class IterationStats:
    """Counts and times of one batch."""

    iteration_timestamp: float = field(default_factory=time.time)
    num_generation_tokens: int = 0
    num_prompt_tokens: int = 0  # of the prompts whose first token came
    num_preempted_reqs: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
    max_num_generation_tokens_iter: list[int] = field(default_factory=list)  # of ended requests
    n_params_iter: list[int] = field(default_factory=list)  # likewise

    def add_tokens(self, state: RequestState, num_new: int, since: float) -> None:
        """So many new tokens of an answer, whose last ones came at `since`; 0: they are its first.

        Both times are monotonic.
        """
        if num_new == 0:
            return
        self.num_generation_tokens += num_new
        if since:
            self.inter_token_latencies_iter.append(state.last_token_ts - since)
        else:
            self.num_prompt_tokens += len(state.prompt_token_ids)
            self.time_to_first_tokens_iter.append(
                self.iteration_timestamp - state.metrics.arrival_time
            )

    def add_end(self, state: RequestState, reason: FinishReason) -> None:
        """An answer has ended, which is no more among those of its parent."""
        metrics, num_tokens = state.metrics, len(state.token_ids)
        first, last = metrics.first_token_ts, state.last_token_ts
        decode_time = max(0.0, last - first) if first else 0.0
        self.finished_requests.append(
            FinishedRequestStats(
                finish_reason=reason,
                request_id=state.request_id,
                e2e_latency=self.iteration_timestamp - metrics.arrival_time,
                num_prompt_tokens=len(state.prompt_token_ids),
                num_preemptions=metrics.num_preemptions,
                num_generation_tokens=num_tokens,
                max_tokens_param=state.params.max_tokens,
                queued_time=max(0.0, metrics.scheduled_ts - metrics.queued_ts),
                prefill_time=max(0.0, first - metrics.scheduled_ts),
                inference_time=max(0.0, last - metrics.scheduled_ts) if last else 0.0,
                decode_time=decode_time,
                mean_time_per_output_token=decode_time / max(1, num_tokens - 1),
                num_cached_tokens=state.num_cached_tokens,
            )
        )
        if state.parent is None:
            self.max_num_generation_tokens_iter.append(num_tokens)
            self.n_params_iter.append(1)
        elif not state.parent.open_ids:
            self.max_num_generation_tokens_iter.append(state.parent.max_num_tokens)
            self.n_params_iter.append(state.parent.params.n)
