"""`ResponseLog`: what the entries of one answer say, in memory or as the store has them.

A continued answer writes after text that its message had already. That text is in no entry of the
log, so a snapshot, or an end that brings the whole text, needs `base` too. Entries leave as frames
one by one, as a replay, or as a snapshot.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson
from msgspec import UNSET, UnsetType

from server.live.outbox import LOGPROB_BYTES, Outbox, PendingDelta
from server.protocol.calls import (
    ADDED,
    ARGUMENTS,
    ARGUMENTS_DONE,
    CALL_ENTRIES,
    ITEM_DONE,
    CallLedger,
    num_call_characters,
)
from server.protocol.encoding import ServerFrame, encode, of_stored
from server.protocol.server_frames import (
    ArgumentsDelta,
    ArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    ReasoningDelta,
    ResponseCreated,
    ResponseDone,
    ResponseInProgress,
    TextSnapshot,
)
from sessions.model.errors import MessageNotFound, ResponseNotFound, SessionNotFound
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.records import RunRecord, utf16_length, utf16_prefix
from sessions.store.store import SessionStore

REASONING_DELTA = "response.reasoning_text.delta"
_KINDS: dict[str, type[ServerFrame]] = {
    "response.in_progress": ResponseInProgress,
    "response.done": ResponseDone,
    REASONING_DELTA: ReasoningDelta,
    ADDED: OutputItemAdded,
    ITEM_DONE: OutputItemDone,
    ARGUMENTS: ArgumentsDelta,
    ARGUMENTS_DONE: ArgumentsDone,
}
THOUGHTS, WORDS, CALLS = "r", "t", "c"  # kinds of what an answer consists of
ORDERLY = frozenset(("", "r", "t", "c", "rt", "rc", "tc", "rtc"))
MAX_STRETCHES = 32  # whose order is kept: at most 320 bytes
MAX_SNAPSHOT_PART = 128 * 1024  # bytes of encoded text, so that no frame comes near 256 KiB
MAX_REPLAY_CHARACTERS = 64 * 1024  # a longer replay is replaced by a snapshot
MAX_BURST_BYTES = 32 * 1024  # what is more at once is no fault of who reads it


@dataclass(frozen=True, slots=True)
class ResponseLog:
    """Entry number `n` is `events[n - 1]`."""

    fence: int
    events: Sequence[Event]
    base: str = ""  # what the message said before entry 1

    @property
    def has_ended(self) -> bool:
        """Whether the last entry is `response.done`."""
        return bool(self.events) and is_done(self.events[-1])

    @property
    def end(self) -> ObjectEvent:
        """`response.done`, of a log that has ended."""
        end = self.events[-1]
        assert isinstance(end, ObjectEvent)
        return end

    @property
    def end_with_text(self) -> ObjectEvent:
        """The same with the message's text, for a client that has not all of it."""
        length = self.end.data["response"]["text_length"]
        return ObjectEvent({**self.end.data, "text": utf16_prefix(self.text(), length)})

    def text(self, until: int | None = None) -> str:
        """The message's text as of entry `until` (default: all of them)."""
        return self.base + text_of(self.events[:until])

    def reasoning(self, until: int | None = None) -> str:
        """What the model has thought in this answer as of entry `until`."""
        return reasoning_of(self.events[:until])

    def output(self, response_id: str, until: int | None = None) -> list[dict[str, Any]]:
        """The calls of tools in this answer, and what became of them, as of entry `until`."""
        return calls_of(response_id, self.events[:until]).all_items()


def text_of(events: Sequence[Event]) -> str:
    """What these entries add to their message."""
    return "".join(event.delta for event in events if isinstance(event, TextEvent))


def reasoning_of(events: Iterable[Event]) -> str:
    """What these entries say that the model thinks."""
    return "".join(event.data["delta"] for event in events if is_reasoning(event))


def is_reasoning(event: Event) -> TypeGuard[ObjectEvent]:
    """Whether it is text that a model writes before its answer.

    It is an entry like any other: a worker that knows nothing of thoughts sends its frame on, and
    takes it for no text of the answer.
    """
    return isinstance(event, ObjectEvent) and event.data.get("type") == REASONING_DELTA


def calls_of(response_id: str, events: Iterable[Event]) -> CallLedger:
    """What these entries say of calls of tools."""
    return CallLedger(response_id, (event.data for event in events if is_call(event)))


def is_call(event: Event) -> TypeGuard[ObjectEvent]:
    """Whether it tells of a call of a tool; an entry like any other, too."""
    return isinstance(event, ObjectEvent) and event.data.get("type") in CALL_ENTRIES


def order_of(events: Iterable[Event]) -> str | None:
    """In which order thoughts, words and calls have come; None: each once, in this order.

    It is `t12r30c2`: 12 UTF-16 code units of words, 30 of thoughts, two calls, and so on. What
    comes after `MAX_STRETCHES` of them is in no order.
    """
    stretches: list[tuple[str, int]] = []
    for event in events:
        kind, length = _stretch(event)
        if not length:
            continue
        if stretches and stretches[-1][0] == kind:
            stretches[-1] = kind, stretches[-1][1] + length
        else:
            stretches.append((kind, length))
    kinds = "".join(kind for kind, _ in stretches)
    if kinds in ORDERLY:
        return None
    return "".join(f"{kind}{length}" for kind, length in stretches[:MAX_STRETCHES])


def _stretch(event: Event) -> tuple[str, int]:
    if isinstance(event, TextEvent):
        return WORDS, utf16_length(event.delta)
    if is_reasoning(event):
        return THOUGHTS, utf16_length(event.data["delta"])
    is_begun = event.data["type"] == ADDED and event.data["item"]["type"] == "function_call"
    return CALLS, int(is_begun)


def num_characters(events: Sequence[Event]) -> int:
    """How much text these entries bring, of all kinds."""
    calls = sum(num_call_characters(event.data) for event in events if is_call(event))
    return len(text_of(events)) + len(reasoning_of(events)) + calls


def is_done(event: Event) -> bool:
    return isinstance(event, ObjectEvent) and event.data.get("type") == "response.done"


def is_whole_end(event: Event) -> bool:
    """Whether it is a `response.done` that brings the text, and so is enough for anybody."""
    return is_done(event) and isinstance(event, ObjectEvent) and "text" in event.data


async def read_log(store: SessionStore, uid: str | None, response_id: str) -> ResponseLog:
    """The log as the store has it. Raises `ResponseNotFound`, `StoreUnavailable`.

    No entry is newer than the fence: a position under this fence is a position in these entries.
    """
    events = [event for _, event in await store.runs.events(response_id)]
    record = await store.runs.get(uid, response_id)
    return ResponseLog(record.fence, events, await read_base(store, record, events))


async def read_base(store: SessionStore, record: RunRecord, events: Sequence[Event]) -> str:
    """The text after which an answer began: at its end, the message still begins with it."""
    length = _base_length(events)
    if length is None:
        length = record.text_length
    if length == 0:
        return ""
    try:
        message = await store.messages.get(record.uid, record.session_id, record.message_id)
    except (SessionNotFound, MessageNotFound):
        raise ResponseNotFound from None
    return utf16_prefix(message.text, length)


def _base_length(events: Sequence[Event]) -> int | None:
    """What the entries say themselves, for the record may be newer than they are; None: nothing."""
    for event in events:
        if isinstance(event, TextEvent):
            return event.text_offset
    if events and isinstance(created := events[0], ObjectEvent):
        return int(created.data.get("response", {}).get("text_length", 0))
    return None


# ---- entries as frames --------------------------------------------------------------------------


def put_event(
    outbox: Outbox,
    response_id: str,
    number: int,
    fence: int,
    event: Event,
    event_id: str | None = None,
) -> None:
    """Queue one numbered entry of a response's log.

    `event_id` is that of the frame that `response.created` answers.
    """
    if isinstance(event, TextEvent):
        outbox.put_delta(response_id, number, fence, event.text_offset, event.delta, event.logprobs)
        return
    frame = response_frame(number, fence, event, event_id=event_id)
    # What begins an answer is stored by then: that need never be taken back.
    outbox.put(frame, response_id, is_entry=not isinstance(frame, ResponseCreated))


def response_frame(
    number: int,
    fence: int,
    event: ObjectEvent,
    *,
    replayed: bool = False,
    event_id: str | None = None,
) -> ServerFrame | Mapping[str, Any]:
    """Entry `number` of an answer's log → its frame.

    Of `response.created` alone: `replayed` says that a repeated key asked for it, `event_id` is
    that of the frame that it answers.
    """
    data = event.data
    entry = {**data, "sequence_number": number, "fence": fence}
    if data["type"] == "response.created":
        answers = UNSET if event_id is None else event_id
        return of_stored(ResponseCreated, {**entry, "replayed": replayed, "event_id": answers})
    kind = _KINDS.get(data["type"])
    return entry if kind is None else of_stored(kind, entry)


def replay_bytes(events: Sequence[Event]) -> int:
    """What a replay of these entries takes, roughly."""
    texts = [event for event in events if isinstance(event, TextEvent)]
    thoughts = [event.data for event in events if is_reasoning(event)]
    return sum(
        (
            *(len(text.delta) + LOGPROB_BYTES * len(text.logprobs) for text in texts),
            *(
                len(each["delta"]) + LOGPROB_BYTES * len(each.get("logprobs", ()))
                for each in thoughts
            ),
            *(num_call_characters(event.data) for event in events if is_call(event)),
        )
    )


def replay_frames(
    response_id: str, fence: int, first: int, events: Sequence[Event]
) -> Iterator[bytes]:
    """Entries `first`, `first` + 1, … of a log as encoded frames, text merged as an outbox does."""
    pending: PendingDelta | None = None
    for number, event in enumerate(events, first):
        if pending is not None and (isinstance(event, ObjectEvent) or pending.is_full):
            yield pending.encode()
            pending = None
        if isinstance(event, ObjectEvent):
            yield encode(response_frame(number, fence, event))
        elif pending is None:
            pending = PendingDelta.of(
                response_id, number, fence, event.text_offset, event.delta, event.logprobs
            )
        else:
            pending.add(number, event.delta, event.logprobs)
    if pending is not None:
        yield pending.encode()


def put_snapshot(
    outbox: Outbox,
    response_id: str,
    number: int,
    fence: int,
    text: str,
    reasoning: str = "",
    output: Sequence[dict[str, Any]] = (),
) -> None:
    """Queue the whole text of a response as of entry `number`, in parts if it is long."""
    frames = snapshot_frames(response_id, number, fence, text, reasoning, output)
    num_characters = len(text) + len(reasoning)
    num_characters += sum(len(item.get("arguments") or item.get("output", "")) for item in output)
    if num_characters > MAX_BURST_BYTES:
        outbox.put_replay(response_id, map(encode, frames), num_characters)
        return
    for frame in frames:
        outbox.put(frame, response_id, is_entry=True)


def snapshot_frames(
    response_id: str,
    number: int,
    fence: int,
    text: str,
    reasoning: str = "",
    output: Sequence[dict[str, Any]] = (),
) -> Iterator[TextSnapshot]:
    """Parts of the reasoning, if there is any, the calls of tools, then parts of the text."""
    parts: list[tuple[str, str | UnsetType, Any]] = []
    if reasoning:
        parts += [("", part, UNSET) for part in _parts_of(reasoning)]
    parts += [("", UNSET, items) for items in _groups_of(output)]
    parts += [(part, UNSET, UNSET) for part in _parts_of(text)]
    for place, (part, thought, items) in enumerate(parts, 1):
        yield TextSnapshot(
            response_id=response_id,
            sequence_number=number,
            fence=fence,
            text=part,
            reasoning_text=thought,
            output=items,
            part=place,
            parts=len(parts),
        )


def _parts_of(text: str) -> Iterator[str]:
    """The text in pieces that are small enough once they are encoded."""
    if len(orjson.dumps(text)) <= MAX_SNAPSHOT_PART:
        yield text
    else:
        middle = len(text) // 2
        yield from _parts_of(text[:middle])
        yield from _parts_of(text[middle:])


def _groups_of(output: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Items in groups that are small enough; an item that is not is one by itself."""
    group: list[dict[str, Any]] = []
    size = 0
    for item in output:
        length = len(orjson.dumps(item))
        if group and size + length > MAX_SNAPSHOT_PART:
            yield group
            group, size = [], 0
        group.append(item)
        size += length
    if group:
        yield group
