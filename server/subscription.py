"""`Subscription`: what one connection watches of one session, and how far it was sent.

The same event may come from memory, from Redis, from the log, twice or late. A subscription counts:
it drops what it has sent, and says when it lacks something.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from server.frames import MAX_REPLAY_CHARACTERS, is_final, put_event, put_snapshot
from server.outbox import Outbox
from server.response_log import ResponseLog, is_done, text_of
from sessions.records import Event, ObjectEvent, TextEvent

DOUBTED = -1  # a cursor: what was sent may not be what is stored, so a whole log must come next


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
    end: tuple[int, int, ObjectEvent] | None = None  # number, fence, event: as it came by


class Subscription:
    """One connection watching one session.

    While it is joining, session events are held back and answers skipped: the snapshot that ends
    the join contains them. Later, what ends a message waits for the `response.done` of its answer,
    if that was begun here. `only` restricts a subscription without the session's own events to the
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
        self.sending = asyncio.Lock()  # held by whoever sends the session's whole state
        self._num_joins = 1  # whole states that must still be sent
        self.rejoin: Callable[[], Awaitable[None]] | None = None  # send the whole state again
        self.on_idle: Callable[[], object] = lambda: None  # the last answer of `only` has ended
        self.cursors: dict[str, int] = {}  # response id → last number that was queued
        self._open: set[str] = set()  # answers of which something was queued, and no end yet
        self._told_early: set[str] = set()  # answers whose end was told before it was stored
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

    @property
    def joining(self) -> bool:
        return self._num_joins > 0

    @property
    def open(self) -> list[str]:
        """Answers whose end must still come by here."""
        return [response_id for response_id in self._open if not self._ends_by_itself(response_id)]

    def _ends_by_itself(self, response_id: str) -> bool:
        """Whether whoever stopped it from here has heard its end, and sends it."""
        frozen = self._frozen.get(response_id)
        is_heard = frozen is not None and frozen.ended.is_set()
        return is_heard and response_id not in self._told_early

    def expect_reply(self, kind: str, event_id: str | None) -> None:
        """The next session event of this kind answers a request of this connection."""
        self._replies.pop(kind, None)
        if event_id is not None:
            self._replies[kind] = event_id

    def put_session_event(self, offset: int, frame: dict[str, Any]) -> None:
        if self.only is None:
            self._held.append((offset, frame))
            self._send_held()

    @property
    def awaited(self) -> str | None:
        """The answer whose end must be sent before the next session event."""
        if self.joining or not self._held:
            return None
        _, frame = self._held[0]
        message = frame.get("message", {})
        is_end = frame["type"] == "message.updated" and message.get("status") != "in_progress"
        response_id: str | None = message.get("response_id")
        return response_id if is_end and response_id in self._open else None

    def _send_held(self) -> None:
        while self._held and not self.joining and self.awaited is None:
            offset, frame = self._held.pop(0)
            if offset > self.offset:
                self.offset = offset
                if (event_id := self._replies.pop(frame["type"], None)) is not None:
                    frame = {**frame, "event_id": event_id}
                self.outbox.put(frame)

    def close(self, response_id: str) -> None:
        """The end of an answer was sent, or will never be: what waits for it goes."""
        self._open.discard(response_id)
        self._send_held()
        if self.only is not None:
            self.only.discard(response_id)
            if not self.only:
                self.on_idle()

    def give_up_end(self, response_id: str) -> None:
        """The log has no end of that answer, so nobody here needs to wait for it.

        Where text was left out, or an end was told early, somebody else brings the end.
        """
        is_another_s = response_id in self._frozen or response_id in self._told_early
        if not is_another_s and not self.doubts(response_id):
            self.close(response_id)

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

    def put_state(self, response_id: str, log: ResponseLog) -> None:
        """Queue an answer as a part of the session's whole state, unasked.

        Who stopped it from here and was told its end gets no text behind that, but the end again.
        """
        frozen = self._frozen.get(response_id)
        if frozen is not None and frozen.ended.is_set() and log.has_ended:
            self.put_end(response_id, log)
        else:
            self.put_log(response_id, log, 0)

    def thaw(self, response_id: str) -> None:
        """An answer that has ended is asked for again."""
        if (frozen := self._frozen.get(response_id)) is not None and frozen.ended.is_set():
            del self._frozen[response_id]

    def lacks_text(self, response_id: str, log: ResponseLog) -> bool:
        """Whether text of the log was left out here, or has not come yet."""
        frozen = self._frozen.get(response_id)
        if self.doubts(response_id) or (frozen is not None and frozen.has_skipped):
            return True
        cursor = self.cursors.get(response_id, 0)
        return any(isinstance(event, TextEvent) for event in log.events[cursor:])

    def put_end(self, response_id: str, log: ResponseLog) -> None:
        """Queue the end of an answer, with its text if not all of that was sent here."""
        end = log.end_with_text if self.lacks_text(response_id, log) else log.end
        self._put_end(response_id, len(log.events), log.fence, end)

    def put_end_again(self, response_id: str, log: ResponseLog) -> None:
        """Queue the end as it is stored, if it was told here before that was certain."""
        if response_id in self._told_early:
            self.put_end(response_id, log)

    async def put_heard_end(self, response_id: str, seconds: float) -> bool:
        """Queue the end of a frozen answer as it came by; False if none comes within `seconds`.

        Its text is not known: this is for answers that are stored nowhere any more.
        """
        frozen = self._frozen[response_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await frozen.ended.wait()
        if frozen.end is None:
            self.close(response_id)
            return False
        self._put_end(response_id, *frozen.end)
        return True

    def _put_end(self, response_id: str, number: int, fence: int, end: ObjectEvent) -> None:
        self.cursors[response_id] = number
        put_event(self.outbox, response_id, number, fence, end)
        if (frozen := self._frozen.get(response_id)) is not None:
            frozen.ended.set()
        self._note_end(response_id, end)

    def _note_end(self, response_id: str, end: ObjectEvent) -> None:
        """An end was queued. The answer stays open while another one must follow."""
        if is_final(end.data):
            self._told_early.discard(response_id)
            self.close(response_id)
        else:
            self._told_early.add(response_id)
            self._open.add(response_id)

    def has_told_end(self, response_id: str) -> bool:
        """Whether all of that answer was sent here, and nothing of it may come any more."""
        is_known = self.cursors.get(response_id, DOUBTED) != DOUBTED
        return is_known and response_id not in self._open

    def begin_join(self) -> None:
        """The state is about to be sent again: hold session events back, and skip answers."""
        self._num_joins += 1
        self._held.clear()

    def end_join(self, offset: int) -> None:
        """The snapshot up to `offset` was queued: send what came meanwhile, and go live.

        Unless another state must be sent, because this one was lost while it was read.
        """
        self._num_joins -= 1
        self.offset = offset
        self._send_held()

    def put_events(self, response_id: str, fence: int, first: int, events: Sequence[Event]) -> bool:
        """Queue entries `first`, `first` + 1, … that are new; False if some before are missing."""
        cursor = self.cursors.get(response_id, 0)
        if cursor == DOUBTED:
            return True
        if first > cursor + 1:
            return False
        for number, event in enumerate(events, first):
            if number > cursor:
                self.cursors[response_id] = number
                self._put_event(response_id, fence, number, event)
        return True

    def _put_event(self, response_id: str, fence: int, number: int, event: Event) -> None:
        frozen = self._frozen.get(response_id)
        end = event if isinstance(event, ObjectEvent) and is_done(event) else None
        if end is None:
            self._open.add(response_id)
        if frozen is None:
            put_event(self.outbox, response_id, number, fence, event)
            if end is not None:
                self._note_end(response_id, end)
        elif end is None:
            frozen.has_skipped |= isinstance(event, TextEvent)
        else:
            frozen.end = number, fence, end
            frozen.ended.set()
            if (text := frozen.text()) is not None:
                whole = ObjectEvent({**end.data, "text": text}) if frozen.has_skipped else end
                self._put_end(response_id, number, fence, whole)

    def put_created(
        self, response_id: str, fence: int, created: Event, event_id: str | None
    ) -> None:
        """`response.created` for the asking connection: a direct reply, with its event id."""
        if self.only is not None:
            self.only.add(response_id)
        data = getattr(created, "data", {})
        reply = ObjectEvent(data if event_id is None else {**data, "event_id": event_id})
        self.put_events(response_id, fence, 1, [reply])

    def doubt(self, response_id: str, *, is_lost: bool = False) -> None:
        """Somebody else may own an answer that was shown from memory: say nothing of it.

        `put_log` ends that. `is_lost`: somebody does, and an end that was told here is not its end.
        """
        self.outbox.withhold(response_id)
        if response_id in self.cursors:
            self.cursors[response_id] = DOUBTED
            self._told_early.discard(response_id)
            if is_lost:
                self._open.add(response_id)
        if is_lost and (frozen := self._frozen.get(response_id)) is not None:
            frozen.text, frozen.end = lambda: None, None
            frozen.ended.clear()

    def doubts(self, response_id: str) -> bool:
        """Whether only a whole log of that answer may be sent next."""
        return self.cursors.get(response_id) == DOUBTED

    def catch_up(self, response_id: str, log: ResponseLog) -> None:
        """Queue what is missing of an answer that may be shown."""
        if self.doubts(response_id):
            self.put_log(response_id, log, 0)
        else:
            self.put_events(response_id, log.fence, 1, log.events)

    def put_log(self, response_id: str, log: ResponseLog, position: int) -> None:
        """Queue a log for somebody who has everything up to entry `position`.

        A position that is not in the log, or far behind, is answered with a snapshot; unless the
        answer was frozen, then its end will bring the text. The end is sent again to who has it:
        no answer at all would leave them waiting.
        """
        if not log.has_ended:
            self._open.add(response_id)
        if position == len(log.events):
            position -= log.has_ended
        frozen = self._frozen.get(response_id)
        missing = len(text_of(log.events[position:]))
        if position and position <= len(log.events) and missing <= MAX_REPLAY_CHARACTERS:
            self.cursors[response_id] = position
        else:
            number = len(log.events) - log.has_ended
            self.cursors[response_id] = number
            self._open.add(response_id)
            if frozen is not None:
                frozen.has_skipped = True
            else:
                put_snapshot(self.outbox, response_id, number, log.fence, log.text(number))
        self.put_events(response_id, log.fence, 1, log.events)
