"""`Subscription`: what one connection watches of one session, and how far it was sent.

The same event may come from memory, from Redis, from the log, twice or late. A subscription counts:
it drops what it has sent, and says when it lacks something.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from server.frames import MAX_REPLAY_CHARACTERS, put_event, put_snapshot
from server.outbox import Outbox
from server.response_log import ResponseLog, is_done, text_of
from sessions.records import Event, ObjectEvent, TextEvent


class Watcher(Protocol):
    """A connection, as the hub sees it."""

    uid: str
    outbox: Outbox

    def evict(self, reason: str) -> None:
        """An admin sends the viewers of its session away."""


@dataclass(slots=True)
class _Frozen:
    """An answer of which its asker to stop gets nothing more but the end."""

    text: Callable[[], str | None]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    has_skipped: bool = False  # text was left out


class Subscription:
    """One connection watching one session.

    While it is joining, session events are held back and answers skipped: the snapshot that ends
    the join contains them. `only` restricts a subscription without the session's own events to the
    answers that were asked for by `response.resume`.
    """

    def __init__(
        self,
        watcher: Watcher,
        session_id: str,
        only: set[str] | None = None,
        *,
        observes: bool = False,
    ) -> None:
        self.watcher = watcher
        self.session_id = session_id
        self.only = only
        self.observes = observes  # somebody else's session: it may be read and nothing more
        self.offset = 0
        self.joining = True
        self.rejoin: Callable[[], Awaitable[None]] | None = None  # send the whole state again
        self.cursors: dict[str, int] = {}  # response id → last number that was queued
        self._frozen: dict[str, _Frozen] = {}  # stopped from here
        self._replies: dict[str, str] = {}  # frame type → event id of the request it answers
        self._held: list[tuple[int, dict[str, Any]]] = []

    @property
    def outbox(self) -> Outbox:
        return self.watcher.outbox

    @property
    def uid(self) -> str | None:
        """Whose objects may be read for it; None: anybody's."""
        return None if self.observes else self.watcher.uid

    @property
    def is_own(self) -> bool:
        """Whether this is a subscription to a session of the connection's user."""
        return self.only is None and not self.observes

    def wants(self, response_id: str) -> bool:
        return self.only is None or response_id in self.only

    def expect_reply(self, kind: str, event_id: str | None) -> None:
        """The next session event of this kind answers a request of this connection."""
        self._replies.pop(kind, None)
        if event_id is not None:
            self._replies[kind] = event_id

    def put_session_event(self, offset: int, frame: dict[str, Any]) -> None:
        if self.only is not None:
            return
        if self.joining:
            self._held.append((offset, frame))
        elif offset > self.offset:
            self.offset = offset
            if (event_id := self._replies.pop(frame["type"], None)) is not None:
                frame = {**frame, "event_id": event_id}
            self.outbox.put(frame)

    def freeze(
        self, response_id: str, text: Callable[[], str | None] = lambda: None
    ) -> asyncio.Event:
        """Send no more text of an answer; the event is set when its end has come by.

        `text` gives what the message says at its end. Where it cannot, whoever freezes sends
        `response.done` itself, with the text if `has_skipped`.
        """
        frozen = self._frozen.setdefault(response_id, _Frozen(text))
        frozen.text = text
        return frozen.ended

    def thaw(self, response_id: str) -> None:
        """An answer that has ended is asked for again."""
        if (frozen := self._frozen.get(response_id)) is not None and frozen.ended.is_set():
            del self._frozen[response_id]

    def has_skipped(self, response_id: str) -> bool:
        frozen = self._frozen.get(response_id)
        return frozen is not None and frozen.has_skipped

    def lacks_text(self, response_id: str, log: ResponseLog) -> bool:
        """Whether text of the log was left out here, or has not come yet."""
        rest = log.events[self.cursors.get(response_id, 0) :]
        return self.has_skipped(response_id) or any(isinstance(e, TextEvent) for e in rest)

    def begin_join(self) -> None:
        """The state is about to be sent again: hold session events back, and skip answers."""
        self.joining = True
        self._held.clear()

    def end_join(self, offset: int) -> None:
        """The snapshot up to `offset` was queued: send what came meanwhile, and go live."""
        self.joining = False
        self.offset = offset
        held, self._held = self._held, []
        for held_offset, frame in held:
            self.put_session_event(held_offset, frame)

    def put_events(self, response_id: str, fence: int, first: int, events: Sequence[Event]) -> bool:
        """Queue entries `first`, `first` + 1, … that are new; False if some before are missing."""
        cursor = self.cursors.get(response_id, 0)
        if first > cursor + 1:
            return False
        for number, event in enumerate(events, first):
            if number > cursor:
                self.cursors[response_id] = number
                if (frozen := self._frozen.get(response_id)) is None:
                    put_event(self.outbox, response_id, number, fence, event)
                elif isinstance(event, TextEvent):
                    frozen.has_skipped = True
                elif isinstance(event, ObjectEvent) and is_done(event):
                    frozen.ended.set()
                    if (text := frozen.text()) is not None:
                        end = {**event.data, "text": text} if frozen.has_skipped else event.data
                        put_event(self.outbox, response_id, number, fence, ObjectEvent(end))
        return True

    def put_created(
        self, response_id: str, fence: int, created: Event, event_id: str | None
    ) -> None:
        """`response.created` for the asking connection: a direct reply, with its event id."""
        if self.only is not None:
            self.only.add(response_id)
        data = getattr(created, "data", {})
        reply = ObjectEvent(data if event_id is None else {**data, "event_id": event_id})
        self.put_events(response_id, fence, 1, [reply])

    def put_log(self, response_id: str, log: ResponseLog, position: int) -> None:
        """Queue a log for somebody who has everything up to entry `position`.

        A position that is not in the log, or far behind, is answered with a snapshot; unless the
        answer was frozen, then its end will bring the text.
        """
        frozen = self._frozen.get(response_id)
        missing = len(text_of(log.events[position:]))
        if position and position <= len(log.events) and missing <= MAX_REPLAY_CHARACTERS:
            self.cursors[response_id] = position
        else:
            number = len(log.events) - log.has_ended
            self.cursors[response_id] = number
            if frozen is not None:
                frozen.has_skipped = True
            else:
                put_snapshot(self.outbox, response_id, number, log.fence, log.text(number))
        self.put_events(response_id, log.fence, 1, log.events)
