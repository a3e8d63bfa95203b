"""`EngineCore`: the step loop, without sockets and tensors.

One round: receive, schedule, forward and sample, receive aborts again, update, send. On a GPU, a
round starts a step before it waits for the one of the round before, so that the GPU need not wait
for what the processor does in between: a stop then wastes at most one step of its sequence.

A request's fault ends that request. A step that finds no memory is tried again, smaller. Any other
fault of the step leaves `run()`, and the process with it.
"""

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from engine.core.io_thread import (
    ClientGone,
    ClientSilent,
    GrammarsReady,
    InboxItem,
    Shutdown,
    Woken,
)
from engine.core.metrics import CoreMetrics
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import (
    Launch,
    Problem,
    ScheduledSequence,
    Sequence,
    Tokens,
)
from engine.core.sleep import Memory
from engine.core.utilities import Adapters, CoreCalls
from engine.ipc import (
    Abort,
    AddRequest,
    ClientMessage,
    CoreMessage,
    Ping,
    Pong,
    StepOutputs,
    Utility,
)

logger = logging.getLogger("engine.core")

STUCK_SECONDS = 10.0  # without a step, though requests wait and none runs: then the first one ends
MAX_TAKEN = 256  # messages of one round: who sends without end delays no step


def take(inbox: SimpleQueue[InboxItem], timeout: float | None) -> InboxItem:
    """The next item. Raises `Empty` after `timeout` seconds.

    In CPython 3.11 `SimpleQueue.get` waits for ever if it finds the queue's own lock free, takes it
    and is late then. A try that does not wait takes the lock before.
    """
    try:
        return inbox.get_nowait()
    except Empty:
        return inbox.get(timeout=timeout)


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was started; `wait` gives its tokens."""

    scheduled: list[ScheduledSequence]
    wait: Callable[[], Tokens]
    started: float  # by the clock of the loop


class EngineCore:
    """The step loop, without sockets and tensors: queues in, `launch` between, `send` out.

    `runs_ahead` starts steps before the last one has ended, wherever no sequence of that one needs
    its token here. `now` is a monotonic clock, replaced in tests; `worker` is what `collective_rpc`
    calls, `memory` what is given back during sleep, and `adapters` are those of the model.
    `prepare` sees each new sequence, and may refuse it. `ready_grammars` gives the sequences whose
    grammars are there by now, with why they end or what their callers hear. `on_run` is called
    before the first round.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        launch: Launch,
        metrics: CoreMetrics,
        *,
        epoch: int = 0,
        runs_ahead: bool = False,
        now: Callable[[], float] = time.monotonic,
        worker: object = None,
        memory: Memory | None = None,
        prepare: Callable[[Sequence], Problem | None] = lambda sequence: None,
        adapters: Adapters | None = None,
        ready_grammars: Callable[[], list[tuple[Sequence, Problem | None, list[str]]]] = list,
        on_run: Callable[[], None] = lambda: None,
    ) -> None:
        self.scheduler = scheduler
        self.metrics = metrics
        self.epoch = epoch
        self.inbox: SimpleQueue[InboxItem] = SimpleQueue()
        self.aborts: deque[tuple[str, Abort]] = deque()
        self.send: Callable[[str, CoreMessage], None] = lambda client_id, message: None
        self._launch = launch
        self.standby_bytes: int | None = None  # memory of a second core like this; None: no room
        self._prepare = prepare
        self._ready_grammars = ready_grammars
        self._on_run = on_run
        self._runs_ahead = runs_ahead
        self._in_flight: StepInFlight | None = None  # between two rounds
        self._last_ended = -math.inf  # when a step ended last
        self._now = now
        self._awake_since = now()
        self._is_stopping = False
        self._round_started: float | None = None  # None: idle
        self._stuck_since: float | None = None  # None: nothing waits in vain
        self._was_busy = False  # since the books were last checked
        self._calls = CoreCalls(
            scheduler,
            metrics,
            lambda client_id, reply: self.send(client_id, reply),
            worker,
            memory,
            on_woken=lambda: self.inbox.put(Woken()),
            adapters=adapters,
        )

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a token; may be asked by other threads."""
        return self._round_started is None and not self.scheduler.sequences

    @property
    def is_waking(self) -> bool:
        """Whether another thread takes memory."""
        return self._calls.is_waking

    def run(self) -> None:
        """Step until a `Shutdown` arrives. An exception of a step is not caught here."""
        self._awake_since = self._now()  # a core may have stood by for long
        self._on_run()
        while not self._is_stopping:
            if not self.step() and not self._is_stopping:
                self.wait()

    def step(self) -> bool:
        """One round; False if there was nothing to compute."""
        self._round_started = self._now()
        self._receive_aborts()
        for _ in range(min(MAX_TAKEN, self.inbox.qsize())):
            self._handle(self.inbox.get_nowait())
        has_step, num_known = self._in_flight is not None, len(self.scheduler.sequences)
        step = self._start_step(self._round_started)
        self._end_step_in_flight()
        if step is None:  # else that one may still compute for a sequence that has ended
            self._calls.answer_drained()
            # Who ended instead of being let in was in the way of the next one.
            has_ended = len(self.scheduler.sequences) < num_known
            return has_step or has_ended or self._check_idle()
        self._in_flight = step
        if self._may_run_ahead(step):
            self.scheduler.anticipate(step.scheduled)
        else:
            self._end_step_in_flight()
        return True

    def wait(self) -> None:
        """Sleep until a message comes, the next paced token is due or the watchdog has its turn."""
        due = None if self._calls.is_frozen else self._next_due()
        if self._stuck_since is not None:
            due = min(due or math.inf, self._stuck_since + STUCK_SECONDS)
        timeout = None if due is None else max(0.0, due - self._now())
        self._round_started = None
        with contextlib.suppress(Empty):
            self._handle(take(self.inbox, timeout))

    def _next_due(self) -> float | None:
        """When the loop has to come round by itself. Falls asleep if that is due."""
        seconds = self.scheduler.config.sleep_after_seconds
        if seconds is None or self.scheduler.sequences or self._calls.pause_mode is not None:
            return self.scheduler.next_due()
        bedtime = max(self._last_ended, self._awake_since) + seconds
        if self._now() < bedtime:
            return bedtime
        self._calls.doze()
        return None

    def pong(self, ping: Ping) -> Pong:
        """The answer to a ping, also while a step runs; called by the IO thread."""
        started = self._round_started
        age = 0.0 if started is None else self._now() - started
        return Pong(ping.number, self.epoch, age, self.scheduler.stats())

    def _start_step(self, started: float) -> StepInFlight | None:
        """Schedule and launch. Without memory: again with less, without the largest prompt, no.

        None if there is nothing to compute.
        """
        for remedy in (self._halve_step, self._end_largest_prompt, None):
            is_frozen = self._calls.is_frozen
            scheduled = [] if is_frozen else self.scheduler.schedule(self._now())
            self._send_outputs()  # who was let in and who waits, before the forward pass
            if not scheduled:
                break
            try:
                return StepInFlight(scheduled, self._launch(scheduled), started)
            except MemoryError as error:
                if remedy is None:
                    raise
                self._end_step_in_flight()  # steps end in the order in which they began
                logger.error("no memory for a step: %s; %s", error, self.scheduler.stats())
                self.scheduler.give_up()
                if not remedy(scheduled):
                    raise
            self._receive_aborts()
        return None

    def _may_run_ahead(self, step: StepInFlight) -> bool:
        if not self._runs_ahead or self._calls.is_frozen:
            return False
        return not any(item.is_last and item.sequence.waits_for_tokens for item in step.scheduled)

    def _end_step_in_flight(self) -> None:
        """Wait for the step in flight, if there is one, and take in what it computed."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return
        tokens, scheduled = step.wait(), step.scheduled
        self._receive_aborts()
        self.scheduler.update(scheduled, tokens, self._now())
        self._send_outputs()
        ended, metrics = self._now(), self.metrics
        seconds = ended - max(step.started, self._last_ended)  # it may have waited for another
        self._last_ended = ended
        self._was_busy = True
        self._stuck_since = None
        if all(item.is_decode for item in scheduled):
            metrics.decode_steps.observe(seconds)
            self.scheduler.prompt_budget.observe_decode(len(scheduled), seconds)
        else:
            metrics.other_steps.observe(seconds)
            num_tokens = sum(item.num_tokens for item in scheduled)
            self.scheduler.prompt_budget.observe(num_tokens, seconds)

    def _halve_step(self, scheduled: list[ScheduledSequence]) -> bool:
        """From now on until the core is idle steps are half as large as this one."""
        self.scheduler.max_step_tokens = max(1, sum(item.num_tokens for item in scheduled) // 2)
        return True

    def _end_largest_prompt(self, scheduled: list[ScheduledSequence]) -> bool:
        """False if no prompt is in this step, so that there is nobody to blame."""
        prompts = [item.sequence for item in scheduled if not item.is_decode]
        if not prompts:
            return False
        largest = max(prompts, key=lambda sequence: sequence.num_tokens)
        error = ("out_of_memory", "there is not enough memory to read the prompt")
        self.scheduler.finish(largest, "error", error=error)
        return True

    def _handle(self, item: InboxItem) -> None:
        match item:
            case Shutdown():
                self._is_stopping = True
            case ClientGone(client_id):
                self.scheduler.drop_client(client_id)
                self._calls.forget(client_id)
            case Woken():
                self._calls.end_waking()
                self._awake_since = self._now()
            case GrammarsReady():
                for sequence, problem, warnings in self._ready_grammars():
                    self.scheduler.let_go_on(sequence, problem, warnings)
            case ClientSilent(client_id):
                error = ("client_silent", "nothing was heard of the client for too long")
                self.scheduler.fail_client(client_id, error)
            case (client_id, message):
                self._handle_message(client_id, message)

    def _handle_message(self, client_id: str, message: ClientMessage) -> None:
        match message:
            case AddRequest():
                self._add(client_id, message)
            case Abort():
                self.scheduler.abort(client_id, message.request_ids, message.reason)
            case Utility():
                self._end_step_in_flight()  # what it finds and changes lies between two steps
                self._calls.answer(client_id, message)

    def _add(self, client_id: str, request: AddRequest) -> None:
        sequence = self.scheduler.add(client_id, request, self._now())
        if sequence is None:
            logger.error("request %s is here already, ignored", request.request_id)
        elif refusal := self._calls.refusal or self._prepare_new(sequence):
            self.scheduler.finish(sequence, "error", error=refusal)
        elif self._calls.is_dozing and not sequence.is_finished:
            self.scheduler.announce_waking(sequence)
            self._calls.rouse()

    def _prepare_new(self, sequence: Sequence) -> Problem | None:
        return None if sequence.is_finished else self._prepare(sequence)

    def _receive_aborts(self) -> None:
        """What has come since; each is in the inbox as well, where it is mostly ignored then."""
        for _ in range(len(self.aborts)):  # and no more, though further ones come meanwhile
            client_id, message = self.aborts.popleft()
            self.scheduler.abort(client_id, message.request_ids, message.reason)

    def _send_outputs(self) -> None:
        outputs = self.scheduler.take_outputs()
        if not outputs:
            return
        stats, step = self.scheduler.stats(), self.metrics.num_steps
        for client_id, of_client in outputs.items():
            self.send(client_id, StepOutputs(self.epoch, step, of_client, stats))

    def _check_idle(self) -> bool:
        """After a round without a step. True if the next one may find work at once."""
        scheduler = self.scheduler
        if scheduler.is_blocked and not self._calls.is_frozen:
            return self._watch_blocked()
        self._stuck_since = None
        if self._was_busy and not scheduler.sequences:
            self._was_busy = False
            scheduler.max_step_tokens = scheduler.config.max_num_batched_tokens
            try:
                scheduler.check_idle()
            except AssertionError:
                logger.exception("idle, but %s", scheduler.stats())
        return False

    def _watch_blocked(self) -> bool:
        """Requests wait and nothing runs: a fault of ours, which must not last for ever."""
        scheduler, now = self.scheduler, self._now()
        head = scheduler.waiting.head
        if self._stuck_since is None:
            self._stuck_since = now
            logger.error("nothing runs, but %r is not let in: %s", head, scheduler.stats())
        if now - self._stuck_since < STUCK_SECONDS:
            return False
        self._stuck_since = None
        message = f"it could not be scheduled for {STUCK_SECONDS:g} s"
        scheduler.finish(head, "error", error=("engine_error", message))
        self._send_outputs()
        return True
