"""`CoreClient`: one client's open requests and the core that computes them.

Between the way to the core (`CoreLink`) and the readers (`OutputProcessor`): it sends requests and
aborts, and hands out what comes back in slices that leave the event loop responsive. When the core
dies it either ends all requests, or keeps them open and sends them to the next core.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from engine.client.requests.core_link import CoreLink, CoreState
from engine.client.requests.inputs import check_prompt
from engine.client.requests.iteration_stats import IterationStats
from engine.client.requests.outgoing import check_request
from engine.client.requests.output_processor import OutputProcessor, merge_outputs
from engine.client.requests.request_state import RequestState, Submission
from engine.client.requests.resubmission import Resubmission
from engine.client.requests.stat_loggers import StatLoggers
from engine.client.text.tokenizer import Tokenizer
from engine.errors import (
    EngineDeadError,
    MaxQueuedTokensError,
    QueueOverflowError,
    RetryableRequestError,
)
from engine.ipc import STOPPED, AddRequest, Ready, SchedulerStats, SequenceOutput
from engine.lora import LoRARequest

logger = logging.getLogger(__name__)

ABORT_CONFIRM_SECONDS = 1.0  # a core that is silent for longer is not waited for
MAX_OUTPUTS_PER_TURN = 128  # processed before the event loop gets a turn
LOOK_SECONDS = 1.0  # between two looks whether those that are held back may be sent
MAX_GAP_SECONDS = 60.0  # that open requests wait for the core after one that has died

StateCallback = Callable[[CoreState, str], None]


class CoreClient:
    """Not for users: `AsyncLLM` is. All methods belong to the event loop of the last `attach`.

    With `reconnect` a dead core is a pause, and requests are refused until another one answers;
    those that are open go on there with `resubmit`, else they fail; `restart_seconds` is how long
    they wait for the core after one that was told to end. Without `reconnect` it is the end, and
    `dead_error` says why.
    """

    def __init__(
        self,
        link: CoreLink,
        tokenizer: Tokenizer,
        *,
        reconnect: bool,
        resubmit: bool = False,
        restart_seconds: float = MAX_GAP_SECONDS,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        on_core_state: StateCallback | None = None,
    ) -> None:
        self.requests = OutputProcessor()
        self.dead_error: EngineDeadError | None = None
        self.ready: Ready | None = None  # of the latest core
        self.link = link
        link.listen(self)
        self._tokenizer = tokenizer
        self._reconnect = reconnect
        self._resubmission = Resubmission(self.requests, self._send) if resubmit else None
        self._restart_seconds = restart_seconds
        self._gap_timer: asyncio.TimerHandle | None = None
        self._trial_timer: asyncio.TimerHandle | None = None
        self._lost_ids: list[str] = []  # internal ids that the latest core had when it was lost
        self._max_num_queued_reqs = max_num_queued_reqs
        self._max_num_queued_tokens = max_num_queued_tokens
        self._report_state = on_core_state
        self.stat_loggers: StatLoggers | None = None  # called with each batch of outputs
        self._iteration: IterationStats | None = None  # of the batch that is being processed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: dict[str, SequenceOutput] = {}  # by internal id, not yet processed
        self._is_processing = False
        self._num_sent = 0  # requests, and tokens, since the core last reported its load
        self._num_sent_tokens = 0

    @property
    def stats(self) -> SchedulerStats | None:
        return self.link.stats

    @property
    def heard_at(self) -> float | None:
        return self.link.heard_at

    @property
    def has_died(self) -> bool:
        """Whether it is over for good, even if the event loop does not know yet."""
        if self.dead_error is not None:
            return True
        return not self._reconnect and self.link.core_has_exited()

    def attach(self) -> None:
        """Work on the running event loop; what one that has ended left open is given up.

        Raises `RuntimeError` while another loop, in another thread, works with this engine.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                if self._loop.is_running():
                    raise RuntimeError("another event loop is using this engine: give each its own")
                self._abort_in_core(self._states())
                self._end_all("its event loop has ended")
            self._is_processing = False
            self._trial_timer = None  # of that loop
            self._loop = loop
        self.link.attach()

    def shut_down(self, reason: str) -> None:
        """End every request. The link stays, for its owner to close."""
        self._abort_in_core(self._states())
        if self.dead_error is None:
            self.dead_error = EngineDeadError(reason)
        self._end_all(reason)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens that wait in the core, or are on their way to it."""
        return (self.stats.num_waiting_tokens if self.stats else 0) + self._num_sent_tokens

    # ---- requests

    def check_admission(self, num_requests: int = 1, *, may_wait: bool = False) -> None:
        """Raise if so many more requests cannot be taken now; `may_wait`: however many wait."""
        if self.has_died:
            raise self.dead_error or EngineDeadError()
        ready, stats = self.link.ready, self.stats
        if ready is None:
            raise RetryableRequestError("the engine core is not ready")
        if may_wait:
            return
        num_running = stats.num_running if stats else 0
        num_waiting = stats.num_waiting if stats else 0
        num_free_seats = max(0, ready.max_num_seqs - num_running)
        num_waiting += max(0, self._num_sent + num_requests - num_free_seats)
        if _exceeds(num_waiting, self._max_num_queued_reqs):
            raise QueueOverflowError("too many requests are waiting")
        if _exceeds(self.num_queued_tokens, self._max_num_queued_tokens):
            raise MaxQueuedTokensError("too many prompt tokens are waiting")

    def submit(
        self,
        state: RequestState,
        token_ids: list[int],
        *,
        resume_token_ids: Sequence[int] = (),
        priority: int = 0,
        cache_salt: str = "",
        lora: LoRARequest | None = None,
        is_admitted: bool = False,
    ) -> None:
        """Give a request to the core. It never waits: a cancelled caller could leak it."""
        ready = self.link.ready
        if ready is None:
            raise RetryableRequestError("the engine core is not ready")
        max_tokens = state.params.max_tokens
        if max_tokens is None or len(resume_token_ids) < max_tokens:
            check_prompt(
                token_ids, resume_token_ids, state.params, ready, state.pooling
            )  # else it comes back only to be ended
        state.lora_request = lora
        state.set_prompt(self._tokenizer, token_ids, resume_token_ids)
        if state.stop_string is not None:
            self.requests.end(state, "stop")
            return
        request = AddRequest(
            request_id=state.internal_id,
            prompt_token_ids=token_ids,
            params=state.params,
            arrival_time=state.metrics.arrival_time,
            resume_token_ids=state.resume_token_ids,
            priority=priority,
            cache_salt=cache_salt,
            pooling=state.pooling,
            lora=lora,
            is_admitted=is_admitted,
        )
        check_request(request)
        if not self._send(request):
            raise RetryableRequestError("the engine core cannot be reached")
        state.in_core = True
        state.submission = Submission(request)

    def abort(self, request_id: Any, *, internal: bool = False) -> None:
        """End a request at its next step; unknown, ended and already aborted ids are ignored."""
        to_stop = []
        for state in self.requests.find(request_id, internal=internal):
            if state.is_aborting:
                continue
            self.requests.start_abort(state)
            if not state.in_core:
                state.metrics.core_confirmed = state.submission is None
                self.requests.end(state, "abort")
                continue
            to_stop.append(state)
        if to_stop:
            self.link.abort([state.internal_id for state in to_stop])
            if self._loop is not None:
                self._loop.call_later(ABORT_CONFIRM_SECONDS, self._end_all_unconfirmed, to_stop)

    def leave(self, *states: RequestState) -> None:
        """The reader of a request is gone; it may be the garbage collector who says so."""
        if self._loop is None or all(state.has_ended for state in states):
            return
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = self._loop.is_closed()
        if is_here:
            self._forget(*states)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._forget, *states)

    async def call(self, name: str, *args: Any) -> Any:
        """Ask the core by name; `EngineGenerateError` if it answers with an error.

        All messages of the core before its answer have reached their readers by then, so that a
        caller who waited for requests to end finds them ended.
        """
        self.attach()
        value = await self.link.call(name, *args)
        while self._is_processing:  # noqa: ASYNC110  (it has a few turns of the loop to go)
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # for the readers, who were woken a moment ago
        return value

    # ---- from the link

    def on_core_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        """Keep what has come, merged for each request, and process it soon."""
        self._num_sent = self._num_sent_tokens = 0
        for output in outputs:
            waiting = self._inbox.get(output.request_id)
            self._inbox[output.request_id] = merge_outputs(waiting, output) if waiting else output
        if self._loop is not None and not self._is_processing:
            self._is_processing = True
            self._loop.call_soon(self._process_inbox)

    def on_core_silent(self, request_ids: Sequence[str]) -> None:
        found = map(self.requests.request_states.get, request_ids)
        self._end_all_unconfirmed([state for state in found if state and state.is_aborting])

    def on_core_state(self, state: CoreState, reason: str) -> None:
        if state is CoreState.READY and self.link.ready is not None:
            self._on_ready(self.link.ready)
        elif state is CoreState.DEAD:
            self._num_sent = self._num_sent_tokens = 0
            if not self._reconnect and self.dead_error is None:
                self.dead_error = EngineDeadError(reason)
            if self._resubmission is None:
                self._end_all(reason)
            else:
                self._hold_all(self._resubmission, reason)
        if self._report_state is not None:
            self._report_state(state, reason)

    def _process_inbox(self) -> None:
        batch = list(islice(self._inbox, MAX_OUTPUTS_PER_TURN))
        if self._iteration is None and self.stat_loggers and self.stat_loggers.has_recorders:
            self._iteration = IterationStats()
        to_stop = self.requests.process([self._inbox.pop(i) for i in batch], self._iteration)
        if to_stop:
            self.link.abort(to_stop, "stop")
        self._is_processing = bool(self._inbox)
        if self._is_processing and self._loop is not None:
            self._loop.call_soon(self._process_inbox)
        elif self._iteration is not None and self.stat_loggers is not None:
            iteration, self._iteration = self._iteration, None
            self.stat_loggers.record(self.stats, iteration)

        if self._resubmission is not None and self._resubmission.waiting():
            self._resubmit()

    # ---- from one core to the next

    def _hold_all(self, resubmission: Resubmission, reason: str) -> None:
        """The core is gone: what it had still said counts, what goes on waits for the next one."""
        self._lost_ids = [state.internal_id for state in self._states() if state.in_core]
        self._process_all()
        for state in self._states():
            if state.is_aborting:
                self._end_unconfirmed(state)
        is_meant = reason == STOPPED
        resubmission.take_back(is_meant=is_meant)
        if self._gap_timer is None and self._loop is not None and resubmission.waiting():
            seconds = self._restart_seconds if is_meant else MAX_GAP_SECONDS
            self._gap_timer = self._loop.call_later(seconds, self._end_gap, seconds)

    def _on_ready(self, ready: Ready) -> None:
        known, self.ready = self.ready, ready
        if self._resubmission is None:
            return
        self._stop_gap_timer()
        if self._lost_ids and known is not None and known.epoch == ready.epoch:
            # We only lost sight of it. It may compute them still, under ids that are used no more.
            self.link.abort(self._lost_ids)
        self._lost_ids = []
        self._resubmission.end_misfits(ready)
        self._resubmit()

    def _resubmit(self) -> None:
        if self._resubmission is None or self.link.ready is None or self._loop is None:
            return
        if self._resubmission.send_some():
            self._loop.call_soon(self._resubmit)
        elif self._trial_timer is None and self._resubmission.waiting():
            # Nothing may come of the one that they wait for.
            self._trial_timer = self._loop.call_later(LOOK_SECONDS, self._look_at_trial)

    def _look_at_trial(self) -> None:
        self._trial_timer = None
        self._resubmit()

    def _end_gap(self, seconds: float) -> None:
        self._gap_timer = None
        if self._resubmission is not None:
            self._resubmission.end_waiting(f"no engine core for {seconds:g} s")

    def _stop_gap_timer(self) -> None:
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None

    # ---- ends

    def _states(self) -> list[RequestState]:
        return list(self.requests.request_states.values())

    def _end_all_unconfirmed(self, states: list[RequestState]) -> None:
        """As below, a few in each turn of the event loop."""
        for state in states[:MAX_OUTPUTS_PER_TURN]:
            self._end_unconfirmed(state)
        if self._loop is not None and (rest := states[MAX_OUTPUTS_PER_TURN:]):
            self._loop.call_soon(self._end_all_unconfirmed, rest)

    def _end_unconfirmed(self, state: RequestState) -> None:
        """The core is silent: end the aborted request alone. What it says later is dropped."""
        if not state.has_ended:
            state.metrics.core_confirmed = False
            self.requests.end(state, "abort")

    def _end_all(self, reason: str) -> None:
        """No core will answer any more: end what is open, after what had still been said."""
        self._stop_gap_timer()
        self._process_all()
        for state in self._states():
            if state.is_aborting:
                self._end_unconfirmed(state)
            else:
                self.requests.fail(state, EngineDeadError(reason))

    def _process_all(self) -> None:
        """Process at once what has come of a core that is gone."""
        outputs, self._inbox = self._inbox, {}
        self.requests.process(outputs.values())

    def _send(self, request: AddRequest) -> bool:
        if not self.link.send(request):
            return False
        self._num_sent += 1
        self._num_sent_tokens += len(request.prompt_token_ids)
        return True

    def _forget(self, *states: RequestState) -> None:
        open_states = [s for s in states if s.internal_id in self.requests.request_states]
        for state in open_states:
            self.requests.discard(state)
            if state.trace is not None:
                state.trace.end(state, "abort")
        self._abort_in_core(open_states)

    def _abort_in_core(self, states: Iterable[RequestState]) -> None:
        ids = [state.internal_id for state in states if state.in_core and not state.is_aborting]
        if ids:
            self.link.abort(ids)


def _exceeds(number: int, limit: int | None) -> bool:
    return limit is not None and number > limit
