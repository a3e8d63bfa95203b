"""`ResponseLog`: what the entries of one answer say, in memory or as the store has them.

A continued answer writes behind text that its message had already. That text is in no entry of the
log, so whoever needs the whole text (a snapshot, an end that brings its text) needs `base` too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sessions.model.errors import MessageNotFound, ResponseNotFound, SessionNotFound
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.records import RunRecord, utf16_prefix
from sessions.store.store import SessionStore


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
        """The same for somebody who lacks text: the message's text in it."""
        length = self.end.data["response"]["text_length"]
        return ObjectEvent({**self.end.data, "text": utf16_prefix(self.text(), length)})

    def text(self, until: int | None = None) -> str:
        """The message's text as of entry `until` (default: all of them)."""
        return self.base + text_of(self.events[:until])


def text_of(events: Sequence[Event]) -> str:
    """What these entries add to their message."""
    return "".join(event.delta for event in events if isinstance(event, TextEvent))


def is_done(event: Event) -> bool:
    return isinstance(event, ObjectEvent) and event.data.get("type") == "response.done"


def is_whole_end(event: Event) -> bool:
    """Whether it is a `response.done` that brings the text, and so is enough for anybody."""
    return is_done(event) and isinstance(event, ObjectEvent) and "text" in event.data


async def read_log(store: SessionStore, uid: str | None, response_id: str) -> ResponseLog:
    """The log as the store has it. Raises `ResponseNotFound`, `StoreUnavailable`.

    No entry is newer than the fence: a position under this fence is a position in these entries.
    """
    events = [event for _, event in await store.events(response_id)]
    record = await store.run(uid, response_id)
    return ResponseLog(record.fence, events, await read_base(store, record, events))


async def read_base(store: SessionStore, record: RunRecord, events: Sequence[Event]) -> str:
    """The text behind which an answer began: at its end, the message still begins with it."""
    first = next((event for event in events if isinstance(event, TextEvent)), None)
    length = record.text_length if first is None else first.text_offset
    if length == 0:
        return ""
    try:
        message = await store.message(record.uid, record.session_id, record.message_id)
    except (SessionNotFound, MessageNotFound):
        raise ResponseNotFound from None
    return utf16_prefix(message.text, length)
