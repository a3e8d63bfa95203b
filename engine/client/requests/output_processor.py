"""Step outputs of the core → `RequestOutput`s for their readers.

`OutputProcessor` holds every open answer, by internal id, and by the caller's id while that id is
taken; a request for several answers (`n > 1`) has a parent here as well. Every end of an answer
goes through `OutputProcessor.end`, which emits its one last output. Nothing here knows the socket:
messages for the core are returned.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from engine.client.requests.iteration_stats import IterationStats
from engine.client.requests.parallel_sampling import ParentRequest
from engine.client.requests.request_state import RequestState, output_failed
from engine.errors import (
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
    ValidationError,
)
from engine.ipc import SequenceOutput
from engine.lora import LoRARequest
from engine.outputs import FinishReason, OutputError

# What the core says of a request that it has not taken, and what its reader gets for it.
REFUSALS = {
    "paused": RetryableRequestError,
    "queue_full": QueueOverflowError,
    "token_queue_full": MaxQueuedTokensError,
}


class OutputProcessor:
    """All open requests of one client."""

    def __init__(self) -> None:
        self.request_states: dict[str, RequestState] = {}  # by internal id
        self.parent_requests: dict[str, ParentRequest] = {}  # by internal id, only with n > 1
        self._external_to_internal: dict[str, str] = {}  # of the parent, if there is one
        # Called with the adapter that a request could not have.
        self.on_adapter_refused: Callable[[LoRARequest], None] = lambda request: None

    def has_unfinished_requests(self) -> bool:
        return bool(self.request_states)

    def add(self, *states: RequestState) -> None:
        """Take the id of a request, all of whose answers are given.

        `ValidationError` if another open request has it.
        """
        self.hold_id(states[0].request_id, _internal_id(states[0]))
        for state in states:
            self.request_states[state.internal_id] = state
            if state.parent is not None:
                self.parent_requests[state.parent.internal_id] = state.parent
                state.parent.open_ids[state.internal_id] = None

    def hold_id(self, request_id: Any, name: str) -> None:
        """Take an id for what consists of several requests; `ValidationError` as `add`."""
        external = str(request_id)
        if external in self._external_to_internal:
            problem = f"a request with the id {external!r} is open already"
            raise ValidationError(problem, "request_id", request_id)
        self._external_to_internal[external] = name

    def release_id(self, request_id: Any, name: str) -> None:
        """Give back what `hold_id` took. Idempotent."""
        if self._external_to_internal.get(str(request_id)) == name:
            del self._external_to_internal[str(request_id)]

    def find(self, request_id: Any, *, internal: bool = False) -> list[RequestState]:
        """The open answers to a request; none if nobody has this id, or it was aborted."""
        key = str(request_id)
        if not internal:
            key = self._external_to_internal.get(key, "")
        if parent := self.parent_requests.get(key):
            return [self.request_states[child_id] for child_id in parent.open_ids]
        state = self.request_states.get(key)
        return [] if state is None else [state]

    def process(
        self, outputs: Iterable[SequenceOutput], stats: IterationStats | None = None
    ) -> list[str]:
        """Hand outputs to their requests. Returns the internal ids that the core must still stop.

        An error over one request ends that one alone, with finish reason `error`. What they
        did is added to `stats`, if somebody wants to know.
        """
        to_stop = []
        for output in outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue  # it has ended here, the core just did not know yet
            if output.error is not None and self._is_refused(state, output.error):
                continue
            before = None
            if stats is not None:
                before = (len(state.token_ids), state.metrics.num_preemptions, state.last_token_ts)
            try:
                reason = state.update(output)
                error = OutputError(*output.error) if output.error else None
            except Exception as exception:
                reason, error = "error", output_failed(state, exception)
            if reason is not None:
                if output.finish_reason is None:
                    to_stop.append(state.internal_id)
                self.end(state, reason, stop_reason=output.stop_reason, error=error)
            if stats is not None and before is not None:
                num_tokens, num_preemptions, last_ts = before
                stats.num_preempted_reqs += state.metrics.num_preemptions - num_preemptions
                stats.add_tokens(state, len(state.token_ids) - num_tokens, last_ts)
                if reason is not None:
                    stats.add_end(state, reason)
        return to_stop

    def _is_refused(self, state: RequestState, error: tuple[str, str]) -> bool:
        """Whether the core has not taken the request; its reader knows that then."""
        code, message = error
        if code == "lora_unavailable" and state.lora_request is not None:
            self.on_adapter_refused(state.lora_request)
        if code not in REFUSALS:
            return False
        self.fail(state, REFUSALS[code](message))
        return True

    def change_internal_id(self, state: RequestState, internal_id: str) -> None:
        """From now on the core knows this answer by another id."""
        external = str(state.request_id)
        if self._external_to_internal.get(external) == state.internal_id:
            self._external_to_internal[external] = internal_id
        del self.request_states[state.internal_id]
        self.request_states[internal_id] = state
        if state.parent is not None:
            del state.parent.open_ids[state.internal_id]
            state.parent.open_ids[internal_id] = None
        state.internal_id = internal_id

    def start_abort(self, state: RequestState) -> None:
        """From now on the request takes no token, and its id is free for another."""
        state.is_aborting = True
        self.release_id(state.request_id, _internal_id(state))

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
        """Forget an answer, without a word to its reader. Idempotent."""
        self.request_states.pop(state.internal_id, None)
        parent = state.parent
        if parent is not None:
            parent.open_ids.pop(state.internal_id, None)
            if parent.open_ids:
                return
            self.parent_requests.pop(parent.internal_id, None)
        self.release_id(state.request_id, _internal_id(state))


def _internal_id(state: RequestState) -> str:
    """Of the whole request."""
    return state.internal_id if state.parent is None else state.parent.internal_id


def merge_outputs(earlier: SequenceOutput, later: SequenceOutput) -> SequenceOutput:
    """Two outputs of one request as one, so that their tokens are decoded together."""
    return msgspec.structs.replace(
        later,
        new_token_ids=[*earlier.new_token_ids, *later.new_token_ids],
        logprobs=_joined(earlier.logprobs, later.logprobs),
        prompt_logprobs=_joined(earlier.prompt_logprobs, later.prompt_logprobs),
        prompt_token_id_logprobs=_joined_bytes(
            earlier.prompt_token_id_logprobs, later.prompt_token_id_logprobs
        ),
        warnings=later.warnings or earlier.warnings,
    )


def _joined(earlier: list[Any] | None, later: list[Any] | None) -> list[Any] | None:
    return None if earlier is None and later is None else [*(earlier or ()), *(later or ())]


def _joined_bytes(earlier: bytes | None, later: bytes | None) -> bytes | None:
    return (earlier or b"") + (later or b"") or None
