"""`Run`: one answer as the worker that produces it holds it in memory. No I/O, no tasks.

A run numbers its events, knows its text, and has the gate that a stop closes: once `stop` was
called, `add_text` refuses, from any caller.
"""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from server.engines.client import ServedModel, TokenCounts
from server.generation.prompts import Prompt
from server.live.response_log import ResponseLog, calls_of, order_of, reasoning_of, text_of
from server.protocol.calls import CallLedger
from server.protocol.encoding import of_stored
from server.protocol.objects import (
    Engine,
    Reason,
    ResponseObject,
    StatusDetails,
    Timings,
    Usage,
)
from server.protocol.server_frames import CallEntry, DoneEntry, InProgressEntry, ReasoningEntry
from server.runs.state import FINISH_TO_STATUS, MOVES, STOP_TO_STATUS, End, IllegalMove, RunState
from server.runs.stop import Stop
from server.telemetry.tracing import AnswerTrace
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.records import Message, RunRecord, utf16_length

_HERE = (RunState.RUNNING, RunState.STOPPING, RunState.LEAVING)


@dataclass(slots=True)
class Timeline:
    """Moments of a run, `time.monotonic()` seconds; None until they come."""

    created: float = field(default_factory=time.monotonic)
    scheduled: float | None = None
    first_token: float | None = None  # when it came here
    first_decoded: float | None = None  # when the engine had it: outputs may come in bunches
    last_token: float | None = None
    done: float | None = None
    at: dict[str, int] = field(default_factory=dict)  # milliseconds since 1970, by Redis' clock
    clock_ahead_ms: int | None = None  # of Redis' clock to ours

    def now_ms(self) -> int:
        """By Redis' clock, as far as it is known here."""
        return _now_ms() + (self.clock_ahead_ms or 0)

    def note(self, name: str, at_ms: int | None = None) -> None:
        """Keep a moment, by default the present one; the first of its name counts."""
        self.at.setdefault(name, self.now_ms() if at_ms is None else at_ms)

    def set_clock(self, redis_ms: int) -> None:
        """It was that late by Redis' clock; of all its replies the one that came soonest counts."""
        ahead = redis_ms - _now_ms()
        if self.clock_ahead_ms is None or ahead > self.clock_ahead_ms:
            self.clock_ahead_ms = ahead

    def wire(self, num_tokens: int) -> dict[str, Any]:
        """The `timings` object: milliseconds from the creation, the decoding rate, the moments."""
        end = self.done or time.monotonic()
        timings: dict[str, Any] = {"total_ms": _ms(end - self.created), **self.at}
        if self.scheduled is not None:
            timings["queue_ms"] = _ms(self.scheduled - self.created)
        if self.first_token is not None and self.last_token is not None:
            timings["ttft_ms"] = _ms(self.first_token - self.created)
        if (rate := self.tokens_per_s(num_tokens)) is not None:
            timings["tokens_per_s"] = rate
        return timings

    def tokens_per_s(self, num_tokens: int) -> float | None:
        """The decoding rate so far; None of less than two tokens."""
        if self.first_token is None or self.last_token is None or num_tokens < 2:
            return None
        decoding = self.last_token - min(self.first_token, self.first_decoded or math.inf)
        return round((num_tokens - 1) / decoding, 1) if decoding > 0 else None


class Run:
    """One answer in the making. `events[n - 1]` is entry number `n` of its log."""

    def __init__(
        self,
        response: dict[str, Any],
        message: Message,
        *,
        uid: str,
        fence: int,
        created: ObjectEvent,
        base: str = "",
    ) -> None:
        self.response = response  # the protocol's object, as in response.created
        self.response_id = str(response["id"])
        self.session_id = str(response["session_id"])
        self.message = message  # the assistant message as it was when the run began
        self.base = base  # the text that it had then, after which this run writes
        self.uid = uid
        self.fence = fence
        self.events: list[Event] = [created]
        self.user_message = message  # replaced by the beginner of the run
        self.is_hidden = False  # its session is in no sidebar
        self.is_brought = False  # by a door that cannot take back what it has sent
        self.lease_until = 0  # by Redis' clock, milliseconds since 1970
        self.renewed_at = time.monotonic()  # when the last renewal that succeeded was sent
        self.must_be_silent: Callable[[], bool] = lambda: False  # it may be another's by now
        self.num_stored = 1  # entries in Redis: `Responses.begin` writes the first
        self.text_length = utf16_length(base)  # UTF-16 code units of the message's text
        self.reasoning_length = 0  # of what this run has the model thinking
        self.token_ids: list[int] = []
        self._logprobs: list[dict[str, Any]] = []  # those that no event has yet
        self.num_tokens_stored = 0
        self.num_discarded = 0  # tokens decoded after the gate had closed
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.counts: TokenCounts | None = None  # of an engine whose tokens are not known here
        self.warnings: list[str] = []  # what its `output` says and nothing holds it to
        self.num_resubmits = 0  # how often the engine was replaced under it, while it was here
        self.prompt: Prompt | None = None
        self.prompt_from: str | None = None
        self.model: ServedModel | None = None  # that computes it; unknown of one that only ends
        self.place: str | None = None  # where keys and values of its session are: "ENGINE MODEL"
        self.tokens_left: int | None = None  # that its user may still use; None: unlimited
        self.group: str | None = None  # of its user's, which has held tokens for it,
        self.tokens_held: int | None = None  # so many; None: not yet
        self._length_reason: Reason = (
            "max_output_tokens"  # "quota": it may be shorter than asked for
        )
        self.known_prompt_hash: str | None = None  # of an answer that another worker had begun
        self.state = RunState.RUNNING
        self.stopping: Stop | None = None  # what closed the gate, in whichever state since then
        self._published: End | None = None  # the end that `response.done` has shown
        self.timeline = Timeline()
        self.trace: AnswerTrace | None = None
        self.on_change: Callable[[], None] = lambda: None  # there is something to append
        self.stop_asked = asyncio.Event()  # wakes the loop that waits for its flush window
        self.stop_is_stored = False  # then not even this worker's death can undo the stop
        self._when_stop_is_stored: list[Callable[[], None]] = []
        self.consent_waits: set[asyncio.Event] = set()  # of calls, for a user's word
        self._hearers: list[Callable[[], None]] = []  # of what the store has of it
        self.promoted = asyncio.Event()  # its turn has come among the session's responses
        self.has_spoken = asyncio.Event()  # there is text, or an end: what can wait may follow
        self.done = asyncio.Event()  # `response.done` was published
        self.settled = asyncio.Event()  # its end is stored, or somebody else's

    @functools.cached_property
    def calls(self) -> CallLedger:
        """Of tools, in this answer. Most answers have none."""
        return CallLedger(self.response_id)

    @property
    def has_calls(self) -> bool:
        """Whether its model has begun to call a tool."""
        return "calls" in self.__dict__ and bool(self.calls.calls)

    @property
    def has_outputs(self) -> bool:
        """Whether the server has begun with calls of tools."""
        return "calls" in self.__dict__ and bool(self.calls.outputs)

    @property
    def ids(self) -> dict[str, str]:
        """What each line of our own log says of which answer it is about."""
        return {"session_id": self.session_id, "response_id": self.response_id}

    @property
    def idempotency_key(self) -> str | None:
        """Of the frame that began the answer."""
        first = self.events[0]
        return first.data.get("idempotency_key") if isinstance(first, ObjectEvent) else None

    @property
    def sequence_number(self) -> int:
        return len(self.events)

    @property
    def log(self) -> ResponseLog:
        return ResponseLog(self.fence, self.events, self.base)

    @property
    def is_started(self) -> bool:
        """Whether `response.in_progress` is in the log."""
        return self.timeline.scheduled is not None

    def set_prompt(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.prompt_from = prompt.first_message_id

    @property
    def status(self) -> str:
        """As clients know it: terminal once `response.done` was published."""
        return "in_progress" if self._published is None else self._published.status

    # ---- its life -------------------------------------------------------------------------------

    def _move(self, state: RunState) -> None:
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self.response_id}: from {self.state.value} to {state.value}")
        self.state = state

    @property
    def is_here(self) -> bool:
        """Its lease is renewed, and what it says is stored: its end is not on the way yet."""
        return self.state in _HERE

    @property
    def is_given_up(self) -> bool:
        """Another worker will go on with it, or does: this one tells nobody that it has ended."""
        return self.state in (RunState.LEAVING, RunState.HANDED_OVER)

    @property
    def is_deleted(self) -> bool:
        """There is nothing to store, and that is no loss."""
        return self.state is RunState.DELETED

    @property
    def is_disowned(self) -> bool:
        return self.state is RunState.DISOWNED

    @property
    def is_elsewhere(self) -> bool:
        """What is wished of it is another worker's to carry out."""
        return self.is_given_up or self.state in (RunState.LOST, RunState.DISOWNED)

    def stop(self, stop: Stop) -> bool:
        """Close the gate, at once and for good; False if it was closed before."""
        if self.state is not RunState.RUNNING:
            return False
        self._move(RunState.STOPPING)
        self._close_gate(stop)
        return True

    def leave(self, stop: Stop) -> bool:
        """Close the gate here, for another worker to go on; False if it was closed before."""
        if self.state is not RunState.RUNNING:
            return False
        self._move(RunState.LEAVING)
        self._close_gate(stop)
        return True

    def delete(self) -> bool:
        """Its session is gone: close the gate. False if it has ended, or is not this worker's."""
        if self.state not in (
            RunState.RUNNING,
            RunState.STOPPING,
            RunState.ENDING,
            RunState.LOST,
        ):
            return False
        if self.state is RunState.RUNNING:
            self._close_gate(Stop("user", "session_deleted"))
        self._move(RunState.DELETED)
        return True

    def begin_end(self) -> None:
        """Its end goes to the store now, whose refusal is expected of one that is lost or gone."""
        if self.state not in (RunState.LOST, RunState.DELETED):
            self._move(RunState.ENDING)

    def take_pending_stop(self, stop: Stop) -> None:
        """The store refuses the end, because it had this stop before: the answer ends by that."""
        if self.state not in (RunState.LOST, RunState.DELETED):
            self._move(RunState.STOPPING)
        self._close_gate(stop)
        self.begin_end()

    def settle(self) -> None:
        """Its end is certain."""
        self._move(RunState.ENDED)

    def lose(self) -> None:
        """The store refuses this worker's writes."""
        if self.state is RunState.LEAVING:
            self._move(RunState.HANDED_OVER)
        elif self.state not in (RunState.DELETED, RunState.LOST, RunState.HANDED_OVER):
            self._move(RunState.LOST)
            if self.stopping is None:
                self._close_gate(Stop("policy", "store_lost"))

    def hand_over(self) -> None:
        """Its lease is given up, or was lost on the way."""
        if self.state is not RunState.HANDED_OVER:
            self._move(RunState.HANDED_OVER)

    def disown(self) -> None:
        """Another worker ends it, or has."""
        if self.state is RunState.LEAVING:
            self._move(RunState.HANDED_OVER)
        elif self.state not in (RunState.DISOWNED, RunState.HANDED_OVER):
            self._move(RunState.DISOWNED)

    def _close_gate(self, stop: Stop) -> None:
        self.stopping = stop
        self.stop_asked.set()
        self.promoted.set()

    def when_stop_is_stored(self, callback: Callable[[], None]) -> None:
        """Call back at that very moment: what the callback queues goes before `response.done`."""
        if self.stop_is_stored:
            callback()
        else:
            self._when_stop_is_stored.append(callback)

    def mark_stop_stored(self) -> None:
        self.stop_is_stored = True
        callbacks, self._when_stop_is_stored = self._when_stop_is_stored, []
        for callback in callbacks:
            callback()

    def restore(self, events: Sequence[Event], token_ids: Sequence[int], record: RunRecord) -> None:
        """Take up what another worker had stored of this answer."""
        self.events = list(events)
        self.num_stored = len(events)
        self.text_length = record.text_length
        self.reasoning_length = utf16_length(reasoning_of(events))
        self.calls = calls_of(self.response_id, events)
        self.token_ids = list(token_ids)
        self.num_tokens_stored = len(token_ids)
        self.known_prompt_hash = record.extra.get("prompt_hash")
        self.is_hidden = record.extra.get("hidden") == "1"
        self.group = record.extra.get("group")
        self.is_brought = "door" in record.extra
        for event in events:
            if isinstance(event, ObjectEvent) and event.data["type"] == "response.in_progress":
                self.num_prompt_tokens = event.data["prompt_tokens"]
                self.num_cached_tokens = event.data["cached_tokens"]
        self._restore_timeline(record)

    def _restore_timeline(self, record: RunRecord) -> None:
        """Moments by Redis' clock, which is taken for ours until it replies again."""
        timeline = self.timeline
        now, now_ms = time.monotonic(), _now_ms()
        for name in ("created_at", "started_at", "first_token_at", "cancel_at"):
            if (at_ms := getattr(record, name)) is not None:
                timeline.note(name, at_ms)
        ago = {name: now - (now_ms - at_ms) / 1000 for name, at_ms in timeline.at.items()}
        timeline.created = ago["created_at"]
        timeline.scheduled = ago.get("started_at")
        timeline.first_token = ago.get("first_token_at")

    # ---- what it says ---------------------------------------------------------------------------

    def add_text(
        self, delta: str, token_ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()
    ) -> TextEvent | None:
        """Number new text; None when there is none, or when the gate is closed."""
        if self.state is not RunState.RUNNING:
            self.num_discarded += len(token_ids)
            return None
        self.token_ids.extend(token_ids)
        self._logprobs += logprobs  # of tokens that are only a part of a character, too
        if not delta:
            return None
        event = TextEvent(self.text_length, delta, False, tuple(self._logprobs))
        self._logprobs.clear()
        self.events.append(event)
        self.has_spoken.set()
        self.text_length += utf16_length(delta)
        self.on_change()
        return event

    def add_reasoning(
        self, delta: str, token_ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()
    ) -> ObjectEvent | None:
        """The same for text that the model writes before its answer; it has its own offsets."""
        if self.state is not RunState.RUNNING:
            self.num_discarded += len(token_ids)
            return None
        self.token_ids.extend(token_ids)
        self._logprobs += logprobs
        if not delta:
            return None
        entry = ReasoningEntry(
            response_id=self.response_id,
            text_offset=self.reasoning_length,
            delta=delta,
            logprobs=self._logprobs or UNSET,
        )
        self._logprobs = []
        self.reasoning_length += utf16_length(delta)
        self.has_spoken.set()
        return self.add_object(entry)

    def take_tokens(self, token_ids: Sequence[int]) -> bool:
        """Tokens that have no text: they say something of a call. False if the gate is closed."""
        if self.state is not RunState.RUNNING:
            self.num_discarded += len(token_ids)
            return False
        self.token_ids.extend(token_ids)
        self._logprobs = []
        return True

    def add_call_entries(self, entries: Sequence[CallEntry]) -> list[ObjectEvent]:
        """What is new of a call, of an answer whose gate is open."""
        self.has_spoken.set()
        return [self.add_object(entry) for entry in entries]

    def add_object(
        self, entry: InProgressEntry | DoneEntry | ReasoningEntry | CallEntry
    ) -> ObjectEvent:
        """Number any other entry."""
        event = ObjectEvent(entry.wire())
        self.events.append(event)
        self.on_change()
        return event

    # ---- who waits for the store ----------------------------------------------------------------

    async def until_stored(self, number: int) -> None:
        """Return when the store has that entry."""
        stored = asyncio.Event()
        with self.telling(stored.set):
            while self.num_stored < number:
                stored.clear()
                await stored.wait()

    @contextlib.contextmanager
    def telling(self, hear: Callable[[], None]) -> Iterator[None]:
        """In the block `hear` is called as soon as the store has more of it, and at the end of all
        that this worker stores. It must not raise.
        """
        self._hearers.append(hear)
        try:
            yield
        finally:
            self._hearers.remove(hear)

    def tell_stored(self) -> None:
        """That moment has come."""
        for hear in [*self._hearers]:
            hear()

    # ---- its end --------------------------------------------------------------------------------

    def note_published(self, end: End) -> None:
        """`response.done` has shown this end to the viewers."""
        self._published = end
        self.done.set()

    def replace_end(self, entry: DoneEntry, end: End) -> None:
        """The last entry was sent before it was stored, and this is what is stored."""
        self.events[-1] = ObjectEvent(entry.wire())
        self._published = end

    def text(self, until: int | None = None) -> str:
        """The message's text as of entry `until` (default: all of them)."""
        return self.base + text_of(self.events[:until])

    @property
    def _last_seen(self) -> int | None:
        """What the stopping user had seen; None if that is beyond the log, or everything.

        The reader of an answer that a door has brought has seen all of it, even if its stopper
        has not: nothing may be cut.
        """
        seen = self.stopping.seen if self.stopping and not self.is_brought else None
        return seen if seen is not None and seen <= self.sequence_number else None

    def final_text(self) -> str:
        """What is kept: cut at what the stopping user had seen."""
        return self.text(self._last_seen)

    def final_reasoning(self) -> str | None:
        """The same of what the model has thought; a continued answer may have thought before."""
        before = self.message.reasoning if self.base else None
        return reasoning_of(self.events[: self._last_seen]) or before

    def final_order(self) -> str | None:
        """The same of their order, and of the words'; a continued answer's is not known."""
        return None if self.base else order_of(self.events[: self._last_seen])

    def final_calls(self) -> list[dict[str, Any]] | None:
        """The same of the tools that it has called; what is not whole is incomplete."""
        events = self.events[: self._last_seen]
        return calls_of(self.response_id, events).items(is_over=True) or None

    def final_outputs(self) -> list[dict[str, Any]] | None:
        """What has become of those that the server has carried out."""
        events = self.events[: self._last_seen]
        return calls_of(self.response_id, events).final_outputs() or None

    def within_budget(self, max_tokens: int) -> int:
        """So many tokens at most, and one at least: what the prompt leaves of the day."""
        given = [n for n in (self.tokens_left, self.tokens_held) if n is not None]
        if not given or self.prompt is None:
            return max_tokens
        left = max(1, min(given) - len(self.prompt.token_ids))
        self._length_reason = "quota" if left < max_tokens else "max_output_tokens"
        return min(max_tokens, left)

    def end(self, finish_reason: str, stop_reason: object, engine: Engine) -> End:
        """The engine's finish reason → how the response ends."""
        if self.stopping is not None:
            status = STOP_TO_STATUS.get(self.stopping.reason, "cancelled")
            return End(status, self.stopping.reason, engine, self.stopping.by)
        status, reason = FINISH_TO_STATUS[finish_reason]
        if finish_reason == "stop" and isinstance(stop_reason, str):
            reason = "stop"
        if reason == "max_output_tokens":
            reason = self._length_reason
        if reason == "eos" and self.calls.has_completed:
            reason = "tool_calls"
        return End(status, reason, engine)

    def done_entry(self, end: End, text_length: int) -> DoneEntry:
        """`response.done`, of an end that is stored."""
        by = UNSET if end.by is None else end.by
        response = replace(
            of_stored(ResponseObject, self.response),
            status=end.status,
            status_details=StatusDetails(reason=end.reason, by=by, message=end.message or UNSET),
            warnings=self.warnings or UNSET,
            usage=Usage(**self.usage()),
            timings=Timings(**self.timeline.wire(self.num_output_tokens)),
            restarts=self.num_restarts or UNSET,
            text_length=text_length,
        )
        # A newer version, which began it, may have stored more of it than this one knows.
        whole = {**self.response, **msgspec.to_builtins(response)}
        return DoneEntry(response=cast("ResponseObject", whole), engine=end.engine, durable=True)

    @property
    def num_restarts(self) -> int:
        """How many engines and workers have ended under it, as far as this worker knows."""
        return self.num_resubmits + self.fence - 1

    def message_settings(self) -> dict[str, Any]:
        """What is kept with the message: enough to make it again, but for long texts."""
        settings = self.response["settings"].items()
        return {name: value for name, value in settings if name not in ("system", "tools")}

    def message_usage(self) -> dict[str, int]:
        """Of the whole message: a continued one had tokens before."""
        usage = self.usage()
        usage["output_tokens"] += (self.message.usage or {}).get("output_tokens", 0)
        return usage

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) if self.counts is None else self.counts.num_output

    def usage(self) -> dict[str, int]:
        """Of this response alone, as the engine counts."""
        if self.counts is not None:
            return {
                "input_tokens": self.counts.num_prompt,
                "cached_tokens": self.counts.num_cached,
                "output_tokens": self.counts.num_output,
            }
        return {
            "input_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "output_tokens": self.num_output_tokens,
        }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
