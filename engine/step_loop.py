"""`EngineCore`: the step loop, without sockets and tensors.

One round: receive, schedule, forward and sample, receive aborts again, update, send. A request's
fault ends that request; a fault of the step itself leaves `run()`, and the process with it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from engine.core_io import ClientGone, InboxItem, Shutdown
from engine.core_metrics import CoreMetrics
from engine.ipc import (
    Abort,
    AddRequest,
    ClientMessage,
    CoreMessage,
    Ping,
    Pong,
    StepOutputs,
    Utility,
    UtilityReply,
)
from engine.scheduler import Scheduler
from engine.sequence import Execute

logger = logging.getLogger("engine.core")


class EngineCore:
    """The step loop, without sockets and tensors: queues in, `execute` between, `send` out.

    `now` is a monotonic clock, replaced in tests.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Execute,
        metrics: CoreMetrics,
        *,
        epoch: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.metrics = metrics
        self.epoch = epoch
        self.inbox: SimpleQueue[InboxItem] = SimpleQueue()
        self.aborts: deque[tuple[str, Abort]] = deque()
        self.send: Callable[[str, CoreMessage], None] = lambda client_id, message: None
        self._execute = execute
        self._now = now
        self._is_stopping = False
        self._round_started: float | None = None  # None: idle
        self._utilities: dict[str, Callable[..., Any]] = {
            "metrics": lambda: metrics.snapshot(scheduler),
            "check_integrity": scheduler.check_integrity,
            "reset_prefix_cache": scheduler.blocks.reset_cache,
            "num_unfinished": lambda: len(scheduler.sequences),
        }

    def run(self) -> None:
        """Step until a `Shutdown` arrives. An exception of a step is not caught here."""
        while not self._is_stopping:
            if not self.step() and not self._is_stopping:
                self.wait()

    def step(self) -> bool:
        """One round; False if there was nothing to compute."""
        self._round_started = self._now()
        self._receive_aborts()
        while not self.inbox.empty():
            self._handle(self.inbox.get_nowait())
        scheduled = self.scheduler.schedule(self._now())
        self._send_outputs()  # who was let in and who waits, before the forward pass
        if not scheduled:
            self._check_idle()
            return False
        metrics = self.metrics
        is_decode = all(item.sequence.is_decoding for item in scheduled)
        tokens = self._execute(scheduled)
        self._receive_aborts()
        self.scheduler.update(scheduled, tokens, self._now())
        self._send_outputs()
        seconds = self._now() - self._round_started
        if is_decode:
            metrics.decode_steps.observe(seconds)
        else:
            metrics.other_steps.observe(seconds)
            num_tokens = sum(item.num_tokens for item in scheduled)
            self.scheduler.prompt_budget.observe(num_tokens, seconds)
        return True

    def wait(self) -> None:
        """Sleep until a message comes or the next token of a paced answer is due."""
        due = self.scheduler.next_due()
        timeout = None if due is None else max(0.0, due - self._now())
        self._round_started = None
        try:
            self._handle(self.inbox.get(timeout=timeout))
        except Empty:
            pass

    def pong(self, ping: Ping) -> Pong:
        """The answer to a ping, also while a step runs; called by the IO thread."""
        started = self._round_started
        age = 0.0 if started is None else self._now() - started
        return Pong(ping.number, self.epoch, age, self.scheduler.stats())

    def _handle(self, item: InboxItem) -> None:
        match item:
            case Shutdown():
                self._is_stopping = True
            case ClientGone(client_id):
                self.scheduler.drop_client(client_id)
            case (client_id, message):
                self._handle_message(client_id, message)

    def _handle_message(self, client_id: str, message: ClientMessage) -> None:
        match message:
            case AddRequest():
                if self.scheduler.add(client_id, message, self._now()) is None:
                    logger.error("request %s is here already, ignored", message.request_id)
            case Abort():
                self.scheduler.abort(client_id, message.request_ids, message.reason)
            case Utility():
                self.send(client_id, self._call(message))

    def _call(self, utility: Utility) -> UtilityReply:
        function = self._utilities.get(utility.name)
        if function is None:
            return UtilityReply(utility.call_id, error=f"there is no utility {utility.name!r}")
        try:
            return UtilityReply(utility.call_id, function(*utility.args))
        except Exception as error:  # an answer, whatever it is: the step loop goes on
            logger.exception("utility %s failed", utility.name)
            return UtilityReply(utility.call_id, error=f"{type(error).__name__}: {error}")

    def _receive_aborts(self) -> None:
        """What has come since; each is in the inbox as well, where it is mostly ignored then."""
        while self.aborts:
            client_id, message = self.aborts.popleft()
            self.scheduler.abort(client_id, message.request_ids, message.reason)

    def _send_outputs(self) -> None:
        outputs = self.scheduler.take_outputs()
        if not outputs:
            return
        stats, step = self.scheduler.stats(), self.metrics.num_steps
        for client_id, of_client in outputs.items():
            self.send(client_id, StepOutputs(self.epoch, step, of_client, stats))

    def _check_idle(self) -> None:
        """With nothing running all blocks must be free, and the head of the queue must fit."""
        scheduler = self.scheduler
        if scheduler.running:
            return
        if scheduler.blocks.num_free != scheduler.blocks.num_blocks:
            logger.error("idle, but %s", scheduler.stats())
        if scheduler.waiting:
            head = scheduler.waiting[0]
            logger.error("nothing runs, but %r was not let in: %s", head, scheduler.stats())
            scheduler.finish(head, "error", error=("engine_error", "it could not be scheduled"))
            self._send_outputs()
