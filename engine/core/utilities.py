"""`CoreCalls`: what clients may ask of the core by name, and whether the core is paused.

A call is answered between two steps, from inside the step loop, so that what it finds is
consistent; one that waits until nothing is left to compute is answered later. A pause belongs to
the core: it holds for all of its clients. It ends with the client that asked for it, or that
client's death would silence all others.

    abort  everything ends now, what comes is refused
    wait   what is here ends in its time, what comes is refused
    keep   nothing moves until the pause is over: running answers stop, what comes is queued
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.core.metrics import CoreMetrics
from engine.core.profiling import Profiler
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import Problem
from engine.ipc import CoreMessage, Utility, UtilityReply, encode

logger = logging.getLogger("engine.core")

PAUSE_MODES = ("abort", "wait", "keep")


@dataclass(frozen=True, slots=True)
class _WhenDrained:
    """The value of a call comes when no request is left, or no pause waits for that any more."""

    value: Callable[[], Any]
    ends_with_pause: bool = False


class CoreCalls:
    """`send` gives replies to the IO thread; `worker` is what `collective_rpc` calls."""

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: CoreMetrics,
        send: Callable[[str, CoreMessage], None],
        worker: object = None,
    ) -> None:
        self.pause_mode: str | None = None
        self._paused_by = ""  # client id
        self._scheduler = scheduler
        self._send = send
        self._worker = worker
        self._profiler = Profiler()
        self._waiting: list[tuple[str, int, _WhenDrained]] = []  # client id, call id
        self._calls: dict[str, Callable[..., Any]] = {
            "metrics": lambda: metrics.snapshot(scheduler),
            "check_integrity": scheduler.check_integrity,
            "num_unfinished": lambda: len(scheduler.sequences),
            "reset_prefix_cache": self._reset_prefix_cache,
            "drain": lambda: _WhenDrained(lambda: None),
            "resume": self._resume,
            "is_paused": lambda: self.pause_mode is not None,
            "start_profile": self._profiler.start,
            "stop_profile": self._profiler.stop,
            "collective_rpc": self._call_worker,
        }

    @property
    def is_frozen(self) -> bool:
        """Whether nothing may be computed."""
        return self.pause_mode == "keep"

    @property
    def refusal(self) -> Problem | None:
        """What a new request ends with, if none is taken."""
        if self.pause_mode in ("abort", "wait"):
            return ("paused", "generation is paused")
        return None

    def answer(self, client_id: str, utility: Utility) -> None:
        """Call, and send the value or the error. Never raises."""
        function = self._calls.get(utility.name)
        if utility.name == "pause":
            function = partial(self._pause, client_id)
        if function is None:
            error = f"there is no utility {utility.name!r}"
            self._send(client_id, UtilityReply(utility.call_id, error=error))
            return
        self._reply(client_id, utility.call_id, lambda: function(*utility.args))

    def forget(self, client_id: str) -> None:
        """A client is gone: it waits for nothing any more, and its pause is over."""
        self._waiting = [each for each in self._waiting if each[0] != client_id]
        if self.pause_mode is not None and self._paused_by == client_id:
            logger.warning("client %s is gone, so its pause is over", client_id)
            self._resume()

    def answer_drained(self) -> None:
        """Answer those who wait for an empty core, if it is empty. Called once per round."""
        if self._waiting and not self._scheduler.sequences:
            waiting, self._waiting = self._waiting, []
            for client_id, call_id, when_drained in waiting:
                self._reply(client_id, call_id, when_drained.value)

    def _reply(self, client_id: str, call_id: int, function: Callable[[], Any]) -> None:
        try:
            value = function()
            if isinstance(value, _WhenDrained):
                self._waiting.append((client_id, call_id, value))
                return
            reply = UtilityReply(call_id, value)
            encode(reply)  # here, where a value that cannot be sent is an error like any other
        except Exception as error:  # an answer, whatever it is: the step loop goes on
            logger.exception("a call of client %s failed", client_id)
            reply = UtilityReply(call_id, error=f"{type(error).__name__}: {error}")
        self._send(client_id, reply)

    def _reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        blocks = self._scheduler.blocks
        if reset_running_requests:
            self._scheduler.preempt_all()
        elif num_held := blocks.num_blocks - blocks.num_free:
            logger.warning("the prefix cache stays: running requests hold %d blocks", num_held)
            return False
        return blocks.reset_cache()

    def _pause(self, client_id: str, mode: str, clear_cache: bool) -> Any:
        if mode not in PAUSE_MODES:
            raise ValueError(f"there is no pause mode {mode!r}")
        if self.pause_mode is not None:
            return None
        self.pause_mode = mode
        self._paused_by = client_id
        if mode == "abort":
            for sequence in list(self._scheduler.sequences.values()):
                self._scheduler.finish(sequence, "abort")

        def clear() -> None:
            if clear_cache:
                self._reset_prefix_cache(reset_running_requests=True)

        return _WhenDrained(clear, ends_with_pause=True) if mode == "wait" else clear()

    def _resume(self) -> None:
        self.pause_mode = None
        given_up = [each for each in self._waiting if each[2].ends_with_pause]
        self._waiting = [each for each in self._waiting if not each[2].ends_with_pause]
        for client_id, call_id, _ in given_up:
            self._reply(client_id, call_id, lambda: None)

    def _call_worker(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = None if method.startswith("_") else getattr(self._worker, method, None)
        if not callable(function):
            raise ValueError(f"the worker has no method {method!r}")
        return function(*args, **kwargs)
