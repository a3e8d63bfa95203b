"""`Resubmission`: open requests on their way from a dead core to the next one.

A request continues where it was: prompt, parameters and seed are sent as before, and every token so
far as an output token, so penalties, lengths and randomness continue. So does its text, with what
was held back, because its detokenizer stays.

One of them may be what killed the core. A request that saw two cores die before it had another
token ends with an error. And a request under that suspicion is sent last and alone, after all
others have proved harmless, so that a deadly request ends no other; or when the last one has stood
still for so long that it may just be slow.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from engine.client.requests.inputs import check_prompt
from engine.client.requests.output_processor import OutputProcessor
from engine.client.requests.request_state import RequestState
from engine.errors import ValidationError
from engine.ipc import AddRequest, Ready
from engine.outputs import OutputError

logger = logging.getLogger(__name__)

MAX_CORES_IN_VAIN = 2  # that may die under a request in a row, without a new token of it
TRIAL_SECONDS = 60.0  # without a new token, after which the others follow
MAX_SENT_PER_TURN = 32  # before the event loop gets a turn: a long prompt takes a while to encode


class Resubmission:
    """Works on the requests of one client; `send` gives one to the present core."""

    def __init__(self, requests: OutputProcessor, send: Callable[[AddRequest], bool]) -> None:
        self._requests = requests
        self._send = send

    def waiting(self) -> list[RequestState]:
        """The requests that a core had and that none has now."""
        states = self._requests.request_states.values()
        return [state for state in states if state.submission is not None and not state.in_core]

    def take_back(self, *, is_meant: bool = False) -> None:
        """The core is gone: all its requests wait from now on, or end if it was one too many.

        `is_meant`: somebody ended it on purpose, so none of them is what killed it.
        """
        for state in list(self._requests.request_states.values()):
            submission = state.submission
            if submission is None or not state.in_core:
                continue
            state.in_core = False
            if len(state.token_ids) > submission.num_tokens:
                submission.num_in_vain = 0
            elif state.queue_position is None and not is_meant:  # who only waited did no harm
                submission.num_in_vain += 1
            if submission.num_in_vain == MAX_CORES_IN_VAIN:
                problem = f"{MAX_CORES_IN_VAIN} engine cores died before it had another token"
                logger.warning("%s: %s", state.request_id, problem)
                self._end(state, problem)

    def end_misfits(self, ready: Ready) -> None:
        """The next core may have another model: end what it cannot go on with."""
        for state in self.waiting():
            try:
                tokens = _tokens_so_far(state)
                check_prompt(state.prompt_token_ids, tokens, state.params, ready, state.pooling)
            except ValidationError as error:
                self._end(state, f"the engine core was replaced, and {error}")

    def end_waiting(self, problem: str) -> None:
        """There will be no core."""
        for state in self.waiting():
            self._end(state, problem)

    def send_some(self) -> bool:
        """Send what may be sent now. Call it again soon if True, else when outputs have come."""
        waiting = self.waiting()
        harmless = [state for state in waiting if not _is_suspect(state)]
        for state in harmless[:MAX_SENT_PER_TURN]:
            self._resubmit(state)
        if not harmless and waiting and not self._is_anybody_on_trial():
            self._resubmit(waiting[0])
        return len(harmless) > MAX_SENT_PER_TURN

    def _is_anybody_on_trial(self) -> bool:
        """Whether a request was sent again that could still turn out to be deadly, and has not
        stood still for so long that all go on.
        """
        sent = [
            state.submission.sent_at
            for state in self._requests.request_states.values()
            if state.in_core
            and state.submission is not None
            and state.submission.num_resubmits > 0
            and len(state.token_ids) == state.submission.num_tokens
            and state.queue_position is None
        ]
        return bool(sent) and min(sent) > time.monotonic() - TRIAL_SECONDS

    def _resubmit(self, state: RequestState) -> None:
        submission = state.submission
        assert submission is not None
        request = msgspec.structs.replace(
            submission.request,
            # A new one each time: what an earlier core may still say is not about this.
            request_id=f"{submission.request.request_id}.{submission.num_resubmits + 1}",
            resume_token_ids=_tokens_so_far(state),
            params=state.remaining_params(),
            is_admitted=True,  # the core before took it
        )
        try:
            if not self._send(request):
                return  # that core is gone, too, and will be noticed
        except ValidationError as error:
            self._end(state, f"the engine core was replaced, and {error}")
            return
        self._requests.change_internal_id(state, request.request_id)
        state.in_core = True
        state.queue_position = None
        submission.num_tokens = len(state.token_ids)
        submission.num_resubmits += 1
        submission.sent_at = time.monotonic()
        metrics = state.metrics  # shared by the answers to one request
        metrics.num_resubmits = max(metrics.num_resubmits, submission.num_resubmits)

    def _end(self, state: RequestState, problem: str) -> None:
        self._requests.end(state, "error", error=OutputError("engine_error", problem))


def _tokens_so_far(state: RequestState) -> list[int]:
    return [*state.resume_token_ids, *state.token_ids]


def _is_suspect(state: RequestState) -> bool:
    return state.submission is not None and state.submission.num_in_vain > 0
