"""`Hub`: who on this worker watches which session; what happens there goes to their outboxes.

A room is a session with at least one viewer here. Answers that this worker runs are fed to it from
memory; everything else comes through the session's channel in Redis. Both may bring the same event,
or one may be late, so each subscription counts: it drops what it has, and `CatchUp` fetches what is
missing from the log. That is what makes "nothing lost, nothing doubled" one rule in one place.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import structlog
from msgspec import UNSET

from server.live.catch_up import CatchUp
from server.live.data_loss import DataLoss
from server.live.outbox import encode_text
from server.live.response_log import ResponseLog
from server.live.rooms import BegunRun, LocalRun, Room, Rooms
from server.live.subscription import Subscription, Watcher
from server.live.viewers import Viewers
from server.protocol.encoding import ServerFrame, encode
from server.protocol.entries import SessionFrame, published_event_frame
from server.protocol.objects import By
from server.protocol.server_frames import (
    ResponseQueued,
    SessionActivity,
    SessionCreated,
    SessionEntry,
    SessionEvicted,
    SessionUpdated,
    ViewerChanged,
)
from sessions.connection.feed import LiveFeed
from sessions.model.errors import StoreUnavailable
from sessions.model.events import (
    Event,
    LiveFrame,
    LivePayload,
    LiveResponseEvents,
    LiveSessionEvents,
    TextEvent,
)
from sessions.model.ids import session_of
from sessions.model.keys import Keys
from sessions.model.records import Session
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")


class Hub:
    """All rooms and users of one worker."""

    def __init__(
        self,
        store: SessionStore,
        feed: LiveFeed,
        keys: Keys,
        replica: str,
        *,
        hides_observers: bool = False,
    ) -> None:
        """`hides_observers`: admins who observe are no viewers."""
        self._store = store
        self._feed = feed
        self._keys = keys
        self._replica = replica
        self._hides_observers = hides_observers
        self._opening = WeakValueDictionary[str, asyncio.Lock]()  # kept by who holds or awaits
        self.rooms = Rooms()
        self._watchers: dict[str, set[Watcher]] = {}  # by user
        self._heard: set[str] = set()  # users whose channel is subscribed
        self.data_loss = DataLoss(self.rooms, store, self.publish_session)
        self.catch_up = CatchUp(self.rooms, self.data_loss, store, self.put_in_order)
        self.viewers = Viewers(store, replica, local=self._num_viewers, tell=self._show_viewers)
        feed.on_resync(self.catch_up.sync_all)

    @property
    def hears_others(self) -> bool:
        """Whether what other workers publish arrives here."""
        return self._feed.is_connected

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for; `close` cancels what is left."""
        self.rooms.spawn(work)

    async def close(self) -> None:
        await self.rooms.end_tasks()

    # ---- connections and their user-wide frames -------------------------------------------------

    async def add_watcher(self, watcher: Watcher) -> None:
        """From now on the connection gets its user's session.* frames."""
        uid = watcher.uid
        self._watchers.setdefault(uid, set()).add(watcher)
        if uid not in self._heard:  # not only the first: it may fail, and what then of the others?
            await self._feed.subscribe(self._keys.user_channel(uid), self._on_user_frame)
            self._heard.add(uid)

    async def remove_watcher(self, watcher: Watcher) -> None:
        uid = watcher.uid
        watchers = self._watchers.get(uid, set())
        watchers.discard(watcher)
        if not watchers and self._watchers.pop(uid, None) is not None:
            self._heard.discard(uid)
            await self._feed.unsubscribe(self._keys.user_channel(uid))

    def broadcast(self, frame: ServerFrame) -> None:
        """Queue a frame for every connection of this worker."""
        encoded = encode(frame)
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.outbox.put_encoded(encoded)

    async def tell_user(
        self, uid: str, session_id: str, frame: ServerFrame, *, besides: Watcher | None = None
    ) -> None:
        """Send a session.* frame to all of the user's connections that do not watch the session."""
        data = frame.wire()
        self._put_user_frame(uid, session_id, data, besides)
        envelope = {"origin": self._replica, "uid": uid, "session_id": session_id, "frame": data}
        with contextlib.suppress(StoreUnavailable):  # a sidebar elsewhere is late, nothing is lost
            await self._store.publish_user(uid, envelope)

    async def publish_created(self, session: Session, besides: Watcher | None = None) -> None:
        """`session.created` to the sidebars."""
        frame = SessionCreated.of(session)
        await self.tell_user(session.uid, session.id, frame, besides=besides)

    async def publish_updated(
        self, session: Session, by: By = "user", besides: Watcher | None = None
    ) -> None:
        """`session.updated` to the viewers, and to the sidebars unless it is in none."""
        frame = SessionUpdated.of(session, by)
        self.publish_session(frame)
        if not session.hidden:
            await self.tell_user(session.uid, session.id, frame, besides=besides)

    def show_activity(
        self, uid: str, session_id: str, *, active: bool, status: str | None = None
    ) -> None:
        """Light or put out the session's dot in the user's sidebars."""
        frame = SessionActivity(
            session_id=session_id, active=active, status=UNSET if status is None else status
        )
        self.spawn(self.tell_user(uid, session_id, frame))

    def _put_user_frame(
        self, uid: str, session_id: str, frame: dict[str, Any], besides: Watcher | None = None
    ) -> None:
        room = self.rooms.get(session_id)
        viewers = {s.watcher for s in room.subscriptions if s.only is None} if room else set()
        everywhere = frame["type"] == "session.activity"
        is_end = frame["type"] == "session.deleted"
        encoded = encode(frame)
        for watcher in self._watchers.get(uid, ()):
            if watcher.sent_ends.is_gone(session_id):
                continue  # a late word of a deleted session would bring it back into the list
            if is_end and watcher not in viewers:
                watcher.sent_ends.note_gone(session_id)
            if watcher is not besides and (everywhere or watcher not in viewers):
                watcher.outbox.put_encoded(encoded)

    def _on_user_frame(self, payload: LivePayload) -> None:
        if isinstance(payload, LiveFrame) and payload.data["origin"] != self._replica:
            data = payload.data
            self._put_user_frame(data["uid"], data["session_id"], data["frame"])

    # ---- joining and leaving --------------------------------------------------------------------

    async def join(self, subscription: Subscription) -> None:
        """Enter the room; the caller reads its snapshot next and then calls `end_join`."""
        session_id = subscription.session_id
        lock = self._opening.setdefault(session_id, asyncio.Lock())
        async with lock:
            if (room := self.rooms.get(session_id)) is None:
                # Subscribe first, read then: an event between the two would be lost otherwise.
                channel = self._keys.session_channel(session_id)
                await self._feed.subscribe(channel, self._on_live)
                try:
                    session = await self._store.sessions.get(None, session_id)
                except BaseException:
                    await self._feed.unsubscribe(channel)
                    raise
                room = self.rooms.open(session_id, session.epoch, session.offset)
            room.add(subscription)
            subscription.outbox.withholder = self.rooms
        if subscription.is_viewer:
            await self.viewers.announce(session_id)

    async def leave(self, subscription: Subscription) -> None:
        session_id = subscription.session_id
        room = self.rooms.get(session_id)
        if room is None:
            return
        room.remove(subscription)
        lock = self._opening.setdefault(session_id, asyncio.Lock())
        async with lock:
            if not room.subscriptions and self.rooms.get(session_id) is room:
                self.rooms.close(room)
                await self._feed.unsubscribe(self._keys.session_channel(session_id))
        if subscription.is_viewer:
            self.spawn(self.viewers.announce(session_id))

    def _num_viewers(self, session_id: str) -> int:
        room = self.rooms.get(session_id)
        subscriptions = room.subscriptions if room else ()
        hides = self._hides_observers
        return len({s.watcher for s in subscriptions if s.is_viewer and not (hides and s.observes)})

    def _show_viewers(self, session_id: str, total: int) -> None:
        room = self.rooms.get(session_id)
        frame = ViewerChanged(session_id=session_id, viewers=total)
        for subscription in room.subscriptions if room else ():
            if not subscription.joining and subscription.only is None:
                subscription.outbox.put(frame)

    # ---- answers --------------------------------------------------------------------------------

    def publish_begun(
        self,
        run: BegunRun,
        messages: Sequence[SessionEntry],
        asker: Subscription | None,
        event_id: str | None,
    ) -> None:
        """What an answer begins with: its messages, `response.created`, and the sidebars' dot.

        The asker's `response.created` has the `event_id` of the frame that asked. What has waited
        in the queue has no asker any more.
        """
        for entry in messages:
            self.publish_session(entry)
        if asker is not None:
            asker.put_created(run.response_id, run.fence, run.events[0], event_id)
        self.publish_events(run.response_id, run.fence, 1, run.events[:1])
        if not run.is_hidden:
            self.show_activity(run.uid, run.session_id, active=True)

    def publish_events(self, response_id: str, fence: int, first: int, events: list[Event]) -> None:
        """Entries of an answer's log: from the run itself, or from another worker's.

        Most often that is one text event, whose frame is made once for all viewers.
        """
        room = self.rooms.of_response(response_id)
        if room is None:
            return
        frame = None
        if len(events) == 1 and isinstance(event := events[0], TextEvent):
            frame = encode_text(response_id, first, fence, event)
        for subscription in room.subscriptions:
            if not subscription.hears(response_id):
                continue
            if not subscription.put_events(response_id, fence, first, events, frame):
                self.catch_up.sync_response(room, response_id)

    def show(self, run: LocalRun, events: list[Event]) -> None:
        """Publish the newest entries of an answer of this worker, while it may.

        An owner that cannot renew its lease does not know for how long the answer is still its own.
        So nothing is shown from shortly before the lease ends until it is renewed, if there are
        other workers: `must_be_silent` says so.
        """
        if self.rooms.is_held(run.response_id):
            return
        if run.must_be_silent():
            self.rooms.hold(run.response_id)
            logger.warning("viewers wait for the store", **run.ids)
            return
        first = run.sequence_number - len(events) + 1
        self.publish_events(run.response_id, run.fence, first, events)

    def show_held(self, run: LocalRun) -> None:
        """The answer is still this worker's: its viewers get what they had to wait for."""
        if not self.rooms.end_hold(run.response_id):
            return
        room = self.rooms.of_response(run.response_id)
        for subscription in room.subscriptions if room else ():
            if not subscription.joining and subscription.wants(run.response_id):
                subscription.catch_up(run.response_id, run.log)

    def tell_end_again(self, response_id: str, log: ResponseLog) -> None:
        """The end of an answer of this worker was sent before it was stored, and now it is.

        It may be another one: a stop that only the store had heard of has come first.
        """
        room = self.rooms.of_response(response_id)
        for subscription in room.subscriptions if room else ():
            if not subscription.joining and subscription.wants(response_id):
                subscription.put_end_again(response_id, log)

    def disown(self, response_id: str) -> None:
        """An answer of this worker is another's now: its viewers get the log's text instead."""
        self.rooms.release(response_id)
        room = self.rooms.of_response(response_id)
        for subscription in room.subscriptions if room else ():
            subscription.doubt(response_id, is_lost=True)
        self.catch_up.resend(response_id)

    def put_unnumbered(self, response_id: str, frame: ServerFrame | Mapping[str, Any]) -> None:
        """A frame about an answer that is not in its log, such as `response.queued`."""
        room = self.rooms.of_response(response_id)
        for subscription in room.subscriptions if room else ():
            if not subscription.joining and subscription.wants(response_id):
                subscription.outbox.put(frame, response_id)

    def tell_viewers(self, frame: ResponseQueued) -> None:
        """Send an unnumbered frame about an answer to its viewers on every worker."""
        self.put_unnumbered(frame.response_id, frame)
        self.spawn(self._publish_frame(session_of(frame.response_id), frame))

    async def _publish_frame(self, session_id: str, frame: ServerFrame) -> None:
        with contextlib.suppress(StoreUnavailable):  # nobody hears it twice, and nothing is lost
            envelope = {"origin": self._replica, "frame": frame.wire()}
            await self._store.sessions.publish(session_id, envelope)

    # ---- session events -------------------------------------------------------------------------

    def publish_session(self, frame: SessionEntry) -> None:
        """A session event that this worker caused."""
        if (room := self.rooms.get(frame.session_id)) is not None:
            self.put_in_order(room, frame.offset, frame)

    def put_in_order(self, room: Room, offset: int, frame: SessionFrame) -> None:
        """Send a session event, as its frame, after all earlier ones; fetch any that is missing."""
        if offset <= room.offset:
            return
        for place, due in room.in_order(offset, frame):
            for subscription in room.subscriptions:
                subscription.put_session_event(place, due)
                if (awaited := subscription.awaited) is not None and not self.rooms.is_claimed(
                    awaited
                ):
                    self.catch_up.sync_response(room, awaited)
                is_sent_away = subscription.is_viewer and not subscription.observes
                if isinstance(due, SessionEvicted) and is_sent_away:
                    subscription.watcher.evict(due.reason or "")
        if room.has_gap:
            self.catch_up.sync_session(room)

    # ---- what other workers publish -------------------------------------------------------------

    def _on_live(self, payload: LivePayload) -> None:
        if isinstance(payload, LiveResponseEvents):
            if not self.rooms.is_claimed(payload.response_id):
                self.publish_events(
                    payload.response_id, payload.fence, payload.first, list(payload.events)
                )
        elif isinstance(payload, LiveSessionEvents):
            self._on_live_session_events(payload)
        elif payload.data["origin"] != self._replica:
            frame = payload.data["frame"]
            if frame["type"] == "viewer.changed":
                self.viewers.take(frame["session_id"], frame["viewers"])
            else:
                self.put_unnumbered(frame["response_id"], frame)

    def _on_live_session_events(self, payload: LiveSessionEvents) -> None:
        room = self.rooms.get(payload.session_id)
        if room is None:
            return
        if payload.epoch != room.epoch:
            self.spawn(self.data_loss.look_at(room.session_id))
            return
        first = payload.offset - len(payload.events) + 1
        for offset, data in enumerate(payload.events, first):
            if offset <= room.offset or self._is_own(data):
                continue
            if data["type"] in ("session.created", "session.updated"):
                # The frame holds the whole session: read it.
                self.catch_up.sync_session(room)
                return
            frame = published_event_frame(room.session_id, offset, data)
            self.put_in_order(room, offset, frame)

    def _is_own(self, data: dict[str, Any]) -> bool:
        """An event that its producer here is about to publish, in its place among the others."""
        return self.rooms.is_claimed(data.get("message", {}).get("response_id"))
