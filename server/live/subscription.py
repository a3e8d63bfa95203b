"""`Subscription`: what one connection watches of one session, and how far it was sent.

The same event may come from memory, from Redis, from the log, twice or late. A subscription counts:
it drops what it has sent, and says when something is missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from server.live.outbox import Outbox
from server.live.response_log import (
    MAX_BURST_BYTES,
    MAX_REPLAY_CHARACTERS,
    ResponseLog,
    is_done,
    is_whole_end,
    num_characters,
    put_event,
    put_snapshot,
    replay_bytes,
    replay_frames,
)
from server.live.sent_ends import SentEnds
from server.protocol.entries import SessionFrame, is_final
from server.protocol.server_frames import MessageUpdated, Reply, SessionDeleted, SessionUpdated
from sessions.model.events import Event, ObjectEvent, TextEvent

LAST_ENDS_SECONDS = 5.0  # for the ends of a deleted session's answers to come, before its own


# In the place of an entry's number: what was sent may not be what is stored, so no entry counts as
# sent, and a whole log must come next.
DOUBTED = -1


class Watcher(Protocol):
    """A connection, as the hub sees it."""

    uid: str
    outbox: Outbox
    sent_ends: SentEnds

    def evict(self, reason: str) -> None:
        """An admin sends the viewers of its session away."""


class Subscription:
    """One connection watching one session.

    While it is joining, session events are held back and answers skipped: the snapshot that ends
    the join contains them. Later, what ends a message waits for the `response.done` of its answer,
    if that was begun here, and what ends the session for those of all its answers. `only` restricts
    a subscription without the session's own events to the answers that were asked for by
    `response.resume`.
    """

    def __init__(
        self,
        watcher: Watcher,
        session_id: str,
        only: set[str] | None = None,
        *,
        observes: bool = False,
        is_viewer: bool = True,
        on_gone: "Callable[[Subscription], object]" = lambda _: None,
        on_idle: "Callable[[Subscription], object]" = lambda _: None,
    ) -> None:
        """`is_viewer` is False for one that only listens for an end, and counts for nobody.

        `on_gone`: the session is deleted, and that was sent; `on_idle`: nothing can come any more.
        """
        self.watcher = watcher
        self.session_id = session_id
        self.only = only
        self.is_viewer = is_viewer
        self.observes = observes  # somebody else's session: it may be read and nothing more
        self.offset = 0
        self.sending = asyncio.Lock()  # held while the session's whole state is sent
        self._num_joins = 1  # whole states that must still be sent
        self.rejoin: Callable[[], Awaitable[None]] | None = None  # send the whole state again
        self._on_gone = on_gone
        self._on_idle = on_idle
        self.cursors: dict[str, int] = {}  # by response id: the last entry that was sent, `DOUBTED`
        self._open: set[str] = set()  # answers of which something was queued, and no end yet
        self._replies: dict[type, str] = {}  # kind of frame → event id of the request it answers
        self._held: list[tuple[int, SessionFrame]] = []
        self._is_gone = False  # `session.deleted` has come: nothing of the session follows
        self._last_call: asyncio.TimerHandle | None = None  # then no end is waited for any more
        self._is_last_call = False
        self.is_over = False  # and has been sent

    @property
    def sent_ends(self) -> SentEnds:
        return self.watcher.sent_ends

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

    def hears(self, response_id: str) -> bool:
        """Whether entries of that answer are put here as they come."""
        return not self._num_joins and (self.only is None or response_id in self.only)

    @property
    def joining(self) -> bool:
        return self._num_joins > 0

    @property
    def open(self) -> list[str]:
        """Answers whose end must still come by here."""
        return [response_id for response_id in self._open if not self._ends_by_itself(response_id)]

    def _ends_by_itself(self, response_id: str) -> bool:
        """Whether the code that stopped it from here has heard its end, and sends it."""
        stopped = self.sent_ends.stopped(response_id)
        is_heard = stopped is not None and stopped.ended.is_set()
        return is_heard and not self.sent_ends.has_early_end(response_id)

    def expect_reply(
        self, kind: type[SessionUpdated | SessionDeleted], event_id: str | None
    ) -> None:
        """The next session event of this kind answers a request of this connection."""
        self._replies.pop(kind, None)
        if event_id is not None:
            self._replies[kind] = event_id

    def put_session_event(self, offset: int, frame: SessionFrame) -> None:
        is_last = isinstance(frame, SessionDeleted)
        if self._is_gone or (self.only is not None and not is_last):
            return
        self._is_gone = is_last
        self._held.append((offset, frame))
        self._send_held()

    @property
    def awaited(self) -> str | None:
        """The answer whose end must be sent before the next session event, and is in the log."""
        if self.joining or not self._held:
            return None
        _, frame = self._held[0]
        if not isinstance(frame, MessageUpdated) or frame.message.status == "in_progress":
            return None
        response_id = frame.message.response_id or None
        return response_id if response_id in self._open else None

    def _awaits_last_ends(self) -> bool:
        """Whether answers of a deleted session have not ended here yet: their owner says how."""
        if self._is_last_call or not isinstance(self._held[0][1], SessionDeleted):
            return False
        if all(map(self.sent_ends.has_early_end, self._open)):
            return False
        if self._last_call is None:
            loop = asyncio.get_running_loop()
            self._last_call = loop.call_later(LAST_ENDS_SECONDS, self._wait_no_longer)
        return True

    def _wait_no_longer(self) -> None:
        self._is_last_call = True
        self._send_held()

    def _send_held(self) -> None:
        while self._held and not self.joining and self.awaited is None:
            if self._awaits_last_ends():
                return
            offset, frame = self._held.pop(0)
            is_last = isinstance(frame, SessionDeleted)
            if offset > self.offset or is_last:
                self.offset = offset
                event_id = self._replies.pop(type(frame), None)
                if self.only is None and isinstance(frame, Reply):
                    self.outbox.put(frame, event_id=event_id)
                elif self.only is None:
                    self.outbox.put(frame)
            if is_last:
                self._tell_gone()

    def _tell_gone(self) -> None:
        """The session counts no more, but an end that comes late is sent all the same."""
        if self._last_call is not None:
            self._last_call.cancel()
        if self.only is None:
            self.sent_ends.note_gone(self.session_id)
        self.is_over = True
        self._on_gone(self)
        if self.is_idle:
            self._on_idle(self)

    def close(self, response_id: str) -> None:
        """The end of an answer was sent, or will never be: what waits for it goes."""
        self._open.discard(response_id)
        self._send_held()
        if self.only is not None:
            self.only.discard(response_id)
        if self.is_idle:
            self._on_idle(self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing can come by here any more."""
        return (self.is_over and not self._open) or (self.only is not None and not self.only)

    def give_up_end(self, response_id: str) -> None:
        """The log has no end of that answer, so nobody here needs to wait for it.

        Where it was stopped from here, or an end was sent early, somebody else brings the end.
        """
        ends = self.sent_ends
        is_another_s = ends.stopped(response_id) is not None or ends.has_early_end(response_id)
        if not is_another_s and not self.doubts(response_id):
            self.close(response_id)

    def lacks_text(self, response_id: str, log: ResponseLog) -> bool:
        """Whether text of the log was left out here, or has not come yet."""
        stopped = self.sent_ends.stopped(response_id)
        has_skipped = stopped is not None and stopped.has_skipped
        if has_skipped or self.sent_ends.has_end(response_id) or self.doubts(response_id):
            return True
        unsent = log.events[self._num_sent(response_id) :]
        return any(isinstance(event, TextEvent) for event in unsent)

    def put_end(self, response_id: str, log: ResponseLog) -> None:
        """Queue the end of an answer, with its text if not all of that was sent here."""
        end = log.end_with_text if self.lacks_text(response_id, log) else log.end
        self._put_end(response_id, len(log.events), log.fence, end)

    def put_end_again(self, response_id: str, log: ResponseLog) -> None:
        """Queue the end as it is stored, if it was sent here before that was certain."""
        if self.sent_ends.has_early_end(response_id):
            self.put_end(response_id, log)

    def put_heard_end(self, response_id: str) -> bool:
        """Queue the end of a stopped answer as it came by; False if none has.

        This is for answers that are stored nowhere any more.
        """
        stopped = self.sent_ends.stopped(response_id)
        if stopped is None or stopped.end is None:
            self.close(response_id)
            return False
        self._put_end(response_id, *stopped.end)
        return True

    def _put_end(self, response_id: str, number: int, fence: int, end: ObjectEvent) -> None:
        self.cursors[response_id] = number
        put_event(self.outbox, response_id, number, fence, end)
        self._note_end(response_id, end)

    def _note_end(self, response_id: str, end: ObjectEvent) -> None:
        """An end was queued. The answer stays open while another one must follow."""
        self.sent_ends.note_end(response_id, is_final=is_final(end.data))
        if is_final(end.data):
            self.close(response_id)
        else:
            self._open.add(response_id)

    def begin_join(self) -> None:
        """The state is about to be sent again: hold session events back, and skip answers."""
        self._num_joins += 1
        if not self._is_gone:
            self._held.clear()

    def end_join(self, offset: int) -> None:
        """The snapshot up to `offset` was queued: send what came meanwhile, and go live.

        Unless another state must be sent, because this one was lost while it was read.
        """
        self._num_joins -= 1
        self.offset = offset
        self._send_held()

    def forget_ends(self) -> None:
        """What was sent of the session may be lost: answers that had ended may go on."""
        self.sent_ends.forget(self.session_id)

    def put_events(
        self,
        response_id: str,
        fence: int,
        first: int,
        events: Sequence[Event],
        frame: bytes | None = None,
    ) -> bool:
        """Queue entries `first`, `first` + 1, … that are new; False if some before are missing.

        An end that brings its text needs none before it. `frame` is a single text event, encoded.
        """
        if (
            frame is not None  # what comes most often: the very next entry, and nothing else
            and self.cursors.get(response_id) == first - 1
            and not self.watcher.sent_ends.knows(response_id)
            and len(frame) <= MAX_BURST_BYTES
            and isinstance(event := events[0], TextEvent)
        ):
            self.cursors[response_id] = first
            self._open.add(response_id)
            self.watcher.outbox.put_text(response_id, first, fence, event, frame)
            return True
        is_doubted, num_sent = self.doubts(response_id), self._num_sent(response_id)
        if is_doubted or first > num_sent + 1:
            number = first + len(events) - 1
            if number > num_sent and is_whole_end(events[-1]):
                self.cursors[response_id] = number
                self._put_event(response_id, fence, number, events[-1])
                return True
            return is_doubted
        number = max(first, num_sent + 1)
        new = events[number - first :]
        if replay_bytes(new) > MAX_BURST_BYTES and not self.sent_ends.is_silent(response_id):
            entries = new[:-1] if is_done(new[-1]) else new
            self._put_replay(response_id, fence, number, entries)
            number, new = number + len(entries), new[len(entries) :]
        for place, event in enumerate(new, number):
            self.cursors[response_id] = place
            self._put_event(response_id, fence, place, event)
        return True

    def _put_replay(
        self, response_id: str, fence: int, first: int, entries: Sequence[Event]
    ) -> None:
        """Queue more entries at once than a reader could be blamed for."""
        self.cursors[response_id] = first + len(entries) - 1
        self._open.add(response_id)
        frames = replay_frames(response_id, fence, first, entries)
        self.outbox.put_replay(response_id, frames, replay_bytes(entries))

    def _put_event(
        self,
        response_id: str,
        fence: int,
        number: int,
        event: Event,
        event_id: str | None = None,
    ) -> None:
        end = event if isinstance(event, ObjectEvent) and is_done(event) else None
        if self.sent_ends.has_answered(response_id):
            if end is not None:
                self.close(response_id)
            return
        if end is None:
            self._open.add(response_id)
        stopped = self.sent_ends.stopped(response_id)
        if stopped is None:
            if end is not None or not self.sent_ends.is_silent(response_id):
                put_event(self.outbox, response_id, number, fence, event, event_id)
            if end is not None:
                self._note_end(response_id, end)
        elif end is None:
            stopped.has_skipped |= isinstance(event, TextEvent)
        elif (text := end.data.get("text", stopped.text())) is not None:
            whole = ObjectEvent({**end.data, "text": text}) if stopped.has_skipped else end
            self._put_end(response_id, number, fence, whole)
        else:
            stopped.end = number, fence, end
            stopped.ended.set()

    def put_created(
        self, response_id: str, fence: int, created: Event, event_id: str | None
    ) -> None:
        """`response.created` for the asking connection: a direct reply, with its event id."""
        if self.only is not None:
            self.only.add(response_id)
        if self.cursors.get(response_id, 0) == 0:
            self.cursors[response_id] = 1
            self._put_event(response_id, fence, 1, created, event_id)

    def doubt(self, response_id: str, *, is_lost: bool = False) -> None:
        """Somebody else may own an answer that was shown from memory: say nothing of it.

        `put_log` ends that. `is_lost`: somebody does, and an end that was sent here is not its end.
        """
        self.outbox.withhold(response_id)
        if response_id in self.cursors:
            self.cursors[response_id] = DOUBTED
            self.sent_ends.take_back(response_id)
            if is_lost:
                self._open.add(response_id)
        if is_lost and (stopped := self.sent_ends.stopped(response_id)) is not None:
            stopped.text, stopped.end = lambda: None, None
            stopped.ended.clear()

    def forget(self, response_id: str) -> None:
        """The answer is stored nowhere any more: nothing counts as sent of it."""
        self.cursors.pop(response_id, None)

    def doubts(self, response_id: str) -> bool:
        """Whether only a whole log of that answer may be sent next."""
        return self.cursors.get(response_id) == DOUBTED

    def _num_sent(self, response_id: str) -> int:
        """How many entries of the answer count as sent."""
        return max(0, self.cursors.get(response_id, 0))

    def catch_up(self, response_id: str, log: ResponseLog) -> None:
        """Queue what is missing of an answer that may be shown."""
        if self.doubts(response_id):
            self.put_log(response_id, log, 0)
        else:
            self.put_events(response_id, log.fence, 1, log.events)

    def put_log(
        self, response_id: str, log: ResponseLog, position: int = 0, asked: int | None = None
    ) -> None:
        """Queue a log for a client that has everything up to entry `position`.

        A position that is not in the log, or far back, is answered with a snapshot. A client that
        has the end gets it again: without an answer it would wait. Where text must not be sent any
        more, the end alone is the answer, to the request `asked` if it has none yet.
        """
        if self.sent_ends.is_silent(response_id):
            self._put_silent(response_id, log, asked)
            return
        if not log.has_ended:
            self._open.add(response_id)
        if position == len(log.events):
            position -= log.has_ended
        if self._may_replay(log, position):
            self.cursors[response_id] = position
        else:
            number = len(log.events) - log.has_ended
            self.cursors[response_id] = number
            self._open.add(response_id)
            text, reasoning = log.text(number), log.reasoning(number)
            output = log.output(response_id, number)
            put_snapshot(self.outbox, response_id, number, log.fence, text, reasoning, output)
        self.put_events(response_id, log.fence, 1, log.events)

    def _may_replay(self, log: ResponseLog, position: int) -> bool:
        """Whether what follows `position` is sent entry by entry: it is known, and not too much."""
        if not 0 < position <= len(log.events):
            return False
        missing = log.events[position:]
        return num_characters(missing) <= MAX_REPLAY_CHARACTERS and self.outbox.has_room_for_replay(
            replay_bytes(missing)
        )

    def _put_silent(self, response_id: str, log: ResponseLog, asked: int | None) -> None:
        """Of a log that brings no text: its end, which says what the text is."""
        ends = self.sent_ends
        if (stopped := ends.stopped(response_id)) is not None:
            stopped.has_skipped = True
        if ends.has_answered(response_id, asked):
            self.cursors[response_id] = len(log.events)
            self.close(response_id)
        elif log.has_ended and (is_final(log.end.data) or not ends.has_early_end(response_id)):
            self.put_end(response_id, log)
        else:
            self.cursors[response_id] = len(log.events)
            self._open.add(response_id)
