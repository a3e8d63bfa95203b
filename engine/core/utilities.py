"""`CoreCalls`: what clients may ask of the core by name, and whether the core is paused or asleep.

A call is answered between two steps, from inside the step loop, so that what it finds is
consistent; one that waits until nothing is left to compute is answered later. A pause belongs to
the core: it holds for all of its clients. It ends with the client that asked for it, or that
client's death would silence all others.

    abort  everything ends now, what comes is refused
    wait   what is here ends in its time, what comes is refused
    keep   nothing moves until the pause is over: running answers stop, what comes is queued

To sleep is a pause in which memory is given back (`sleep.py`); waking up ends it. While a part is
being taken again, further calls to sleep or to wake up wait for that. A core that dozes is asleep
at level 1 because nobody had asked it anything; the next request wakes it up.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from engine.core.metrics import CoreMetrics
from engine.core.profiling import Profiler
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import Problem
from engine.core.sleep import LEVELS, TAGS, Memory, SleepingParts
from engine.ipc import CoreMessage, Utility, UtilityReply, encode
from engine.lora import LoRARequest

logger = logging.getLogger("engine.core")

PAUSE_MODES = ("abort", "wait", "keep")
SCHEDULING = "scheduling"  # vLLM's tag for what sleeps at level 0
NOBODY = ""  # the client id of calls that are our own


class Adapters(Protocol):
    """The adapters of the model that are in memory, by number."""

    def add(self, request: LoRARequest, in_use: set[int], is_needed_here: bool) -> str: ...

    def remove(self, number: int) -> bool: ...

    def pin(self, number: int) -> bool: ...

    def numbers(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class _WhenDrained:
    """The value of a call comes when no request is left, or no pause waits for that any more."""

    value: Callable[[], Any]
    ends_with_pause: bool = False


class _WhenWoken:
    """The value of a call comes with `end_waking`."""


class CoreCalls:
    """`send` gives replies to the IO thread; `worker` is what `collective_rpc` calls.

    `on_woken` is called by another thread when `end_waking` is due. Without `adapters` there are
    none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: CoreMetrics,
        send: Callable[[str, CoreMessage], None],
        worker: object = None,
        memory: Memory | None = None,
        on_woken: Callable[[], None] = lambda: None,
        adapters: Adapters | None = None,
    ) -> None:
        self.pause_mode: str | None = None
        self._paused_by = NOBODY
        self.is_dozing = False  # asleep until the next request
        self._parts = SleepingParts(memory, on_woken)
        self._woken_by = (NOBODY, 0)  # client id, call id
        self._deferred: deque[tuple[str, Utility]] = deque()  # until `end_waking`
        self._scheduler = scheduler
        self._send = send
        self._worker = worker
        self._adapters = adapters
        self._profiler = Profiler()
        self._waiting: list[tuple[str, int, _WhenDrained]] = []  # client id, call id
        self._calls: dict[str, Callable[..., Any]] = {
            "metrics": lambda: metrics.snapshot(scheduler),
            "check_integrity": scheduler.check_integrity,
            "num_unfinished": lambda: len(scheduler.sequences),
            "reset_prefix_cache": self._reset_prefix_cache,
            "drain": lambda: _WhenDrained(lambda: None),
            "resume": self._resume,
            "is_paused": lambda: self.pause_mode is not None and not self.is_dozing,
            "wake_up": self._wake_up,
            "is_sleeping": lambda: scheduler.is_sleeping,
            "start_profile": self._profiler.start,
            "stop_profile": self._profiler.stop,
            "collective_rpc": self._call_worker,
            "add_lora": self._add_adapter,
            "remove_lora": lambda number: adapters is not None and adapters.remove(number),
            "pin_lora": lambda number: adapters is not None and adapters.pin(number),
            "list_loras": lambda: [] if adapters is None else adapters.numbers(),
        }

    @property
    def is_frozen(self) -> bool:
        """Whether nothing may be computed."""
        return self.pause_mode == "keep" or bool(self._parts.asleep)

    @property
    def is_waking(self) -> bool:
        """Whether another thread takes memory."""
        return self._parts.is_waking

    @property
    def refusal(self) -> Problem | None:
        """What a new request ends with, if none is taken."""
        if self.pause_mode in ("abort", "wait"):
            return (
                "paused",
                "the engine is asleep" if self._scheduler.is_sleeping else "generation is paused",
            )
        return None

    def answer(self, client_id: str, utility: Utility) -> None:
        """Call, and send the value or the error. Never raises."""
        function = self._calls.get(utility.name)
        if self.is_waking and utility.name in ("sleep", "wake_up"):
            self._deferred.append((client_id, utility))
            return
        if utility.name == "pause":
            function = partial(self._pause, client_id)
        elif utility.name == "sleep":
            function = partial(self._sleep, client_id)
        if function is None:
            error = f"there is no utility {utility.name!r}"
            self._send(client_id, UtilityReply(utility.call_id, error=error))
            return
        self._reply(client_id, utility.call_id, lambda: function(*utility.args))

    def forget(self, client_id: str) -> None:
        """A client is gone: it waits for nothing any more, and its pause is over."""
        self._waiting = [each for each in self._waiting if each[0] != client_id]
        self._deferred = deque(each for each in self._deferred if each[0] != client_id)
        if self.pause_mode is not None and self._paused_by == client_id:
            logger.warning("client %s is gone, so its pause is over", client_id)
            self.answer(NOBODY, Utility(0, "wake_up" if self._scheduler.is_sleeping else "resume"))

    def doze(self) -> None:
        """Sleep until the next request, which calls `rouse`. Only where nothing is to be done."""
        self._sleep(NOBODY, 1, "keep")
        self.is_dozing = True

    def rouse(self) -> None:
        """Wake up from dozing; without memory the requests that wait end with an error."""
        if not self.is_waking:
            self.answer(NOBODY, Utility(0, "wake_up"))

    def end_waking(self) -> None:
        """What was to be taken again is here, or is not. Answer who waits for it."""
        if self._parts.has_woken:  # else it was waited for
            self._finish_waking()

    def answer_drained(self) -> None:
        """Answer those who wait for an empty core, if it is empty. Called once per round."""
        if not self._waiting or self._scheduler.sequences:
            return
        waiting, self._waiting = self._waiting, []
        for client_id, call_id, when_drained in waiting:
            if when_drained.ends_with_pause and self.is_waking:
                # It may give back what the other thread takes. Waking ends its pause, or fails.
                self._waiting.append((client_id, call_id, when_drained))
            else:
                self._reply(client_id, call_id, when_drained.value)

    def _reply(self, client_id: str, call_id: int, function: Callable[[], Any]) -> None:
        try:
            value = function()
            if isinstance(value, _WhenDrained):
                self._waiting.append((client_id, call_id, value))
                return
            if isinstance(value, _WhenWoken):
                self._woken_by = (client_id, call_id)
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
        _check_mode(mode)
        if self.is_dozing:
            self._wake_at_once()
        if self.pause_mode is not None:
            return None

        def clear() -> None:
            if clear_cache:
                self._reset_prefix_cache(reset_running_requests=True)

        return self._stop(client_id, mode, clear)

    def _stop(self, client_id: str, mode: str, then: Callable[[], None]) -> Any:
        """Pause, and do what follows as soon as nothing runs."""
        self.pause_mode = mode
        self._paused_by = client_id
        if mode == "abort":
            for sequence in list(self._scheduler.sequences.values()):
                self._scheduler.finish(sequence, "abort")
        if mode == "wait" and not self._parts.asleep:
            return _WhenDrained(then, ends_with_pause=True)
        return then()

    def _resume(self) -> None:
        if self.is_dozing and self._parts.asleep:
            return  # nobody has paused it
        if self._parts.asleep:
            raise RuntimeError("the engine is asleep: wake_up() ends that")
        self.pause_mode = None
        self.is_dozing = False
        self._scheduler.is_sleeping = False
        given_up = [each for each in self._waiting if each[2].ends_with_pause]
        self._waiting = [each for each in self._waiting if not each[2].ends_with_pause]
        for client_id, call_id, _ in given_up:
            self._reply(client_id, call_id, lambda: None)

    def _sleep(self, client_id: str, level: int, mode: str) -> Any:
        """As in vLLM: a pause of this mode, also where there is another one already."""
        _check_mode(mode)
        if level not in LEVELS:
            raise ValueError(f"there is no level {level!r} of sleep")

        def give_back() -> None:
            if level:
                self._reset_prefix_cache(reset_running_requests=True)
                self._parts.give_back(level)
                logger.info("asleep at level %d", level)

        self._scheduler.is_sleeping = True
        self.is_dozing = False
        return self._stop(client_id, mode, give_back)

    def _wake_up(self, tags: list[str] | None = None) -> Any:
        if unknown := set(tags or ()) - {*TAGS, SCHEDULING}:
            raise ValueError(f"there is no tag {min(unknown)!r}")
        if self._scheduler.is_sleeping and self._parts.asleep:
            self._parts.take_again(TAGS if tags is None else tags)
            return _WhenWoken()
        self._resume_if_awake()
        return None

    def _wake_at_once(self) -> None:
        """End dozing for one who is about to pause. Raises if there is no memory."""
        while self.is_dozing:  # again where others have asked for a part alone
            self.rouse()
            error = self._finish_waking()
            if error is not None:
                raise error

    def _finish_waking(self) -> Exception | None:
        """Wait for what is taken, and answer who waits for it; what kept it from coming, if so."""
        failure: Exception | None = None

        def end() -> None:
            nonlocal failure
            try:
                self._parts.end_waking()
            except Exception as error:
                failure = error
                self._fail_roused()
                raise
            self._resume_if_awake()

        self._reply(*self._woken_by, end)
        if self.is_dozing and self._scheduler.sequences:  # only a part was asked for
            self.rouse()
        while self._deferred and not self.is_waking:
            self.answer(*self._deferred.popleft())
        return failure

    def _fail_roused(self) -> None:
        """End what came while the core dozed: nothing else would."""
        if self.is_dozing:
            error = ("engine_error", "the engine could not wake up")
            for sequence in list(self._scheduler.sequences.values()):
                self._scheduler.finish(sequence, "error", error=error)

    def _resume_if_awake(self) -> None:
        if self._scheduler.is_sleeping and not self._parts.asleep:
            self._resume()
            logger.info("awake")

    def _add_adapter(self, fields: dict[str, Any], is_needed_here: bool) -> tuple[str, str]:
        """The hash of its files, and what is wrong with it; one of them is empty."""
        if self._adapters is None:
            return "", "the engine was started without enable_lora"
        try:
            request = msgspec.convert(fields, LoRARequest)
            in_use = self._scheduler.seats.adapters.in_use()
            return self._adapters.add(request, in_use, is_needed_here), ""
        except ValueError as error:
            return "", str(error)

    def _call_worker(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = None if method.startswith("_") else getattr(self._worker, method, None)
        if not callable(function):
            raise ValueError(f"the worker has no method {method!r}")
        return function(*args, **kwargs)


def _check_mode(mode: str) -> None:
    if mode not in PAUSE_MODES:
        raise ValueError(f"there is no pause mode {mode!r}")
