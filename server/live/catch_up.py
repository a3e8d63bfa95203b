"""`CatchUp`: reads from the stored logs what a connection that follows a session here has missed.

A connection that begins to follow an answer gets it from a position on; one that missed something
gets just that; and one that was shown what is not stored gets what is. More may come live while a
log is read: nothing is locked for that, because every `Subscription` counts and drops what it has.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from server.live.data_loss import DataLoss
from server.live.response_log import ResponseLog, is_done, read_base, read_log
from server.live.retries import until_done
from server.live.rooms import Room, Rooms
from server.live.subscription import Subscription
from server.protocol.entries import SessionFrame, session_event_frame
from sessions.model.errors import ResponseNotFound, SessionNotFound, StoreUnavailable
from sessions.model.events import Event
from sessions.model.records import RunRecord
from sessions.store.store import SessionStore


class CatchUp:
    """Beside the `Hub` of one worker."""

    def __init__(
        self,
        rooms: Rooms,
        data_loss: DataLoss,
        store: SessionStore,
        put_in_order: Callable[[Room, int, SessionFrame], None],
    ) -> None:
        """`put_in_order` takes a session event with its offset; see `Hub`."""
        self._rooms = rooms
        self._data_loss = data_loss
        self._store = store
        self._put_in_order = put_in_order

    # ---- one subscription begins to follow an answer --------------------------------------------

    async def attach(
        self,
        subscription: Subscription,
        response_id: str,
        position: int = 0,
        fence: int | None = None,
        *,
        asked: int | None = None,
    ) -> None:
        """Send what the subscription has missed of one answer; live events then follow by number.

        A `position` counts only in the log of the `fence` that came with it; None: in any.
        `asked` is the number of the request (`SentEnds.ask`), None where there was none. Raises
        `ResponseNotFound`, `StoreUnavailable`.
        """
        (await self.prepare(subscription, response_id, position, fence, asked=asked))()

    async def prepare(
        self,
        subscription: Subscription,
        response_id: str,
        position: int = 0,
        fence: int | None = None,
        *,
        asked: int | None = None,
    ) -> Callable[[], None]:
        """Read what `attach` sends; what is returned sends it, and cannot fail. Raises likewise."""
        run = self._rooms.run(response_id)
        log = (
            run.log
            if run is not None
            else await read_log(self._store, subscription.uid, response_id)
        )

        def put() -> None:
            # It may have begun here, or gone on, meanwhile.
            present = self._rooms.run(response_id)
            now = log if present is None else present.log
            # What was shown under an older fence may have other numbers than what was stored.
            is_known = fence in (None, now.fence)
            subscription.put_log(response_id, now, position if is_known else 0, asked)
            if present is None and run is not None and run.is_disowned:
                # Lost since it was read: this may be more than is stored.
                subscription.doubt(response_id, is_lost=True)
                self.resend(response_id)

        return put

    def fill_gap(self, subscription: Subscription, response_id: str) -> None:
        """Send what was published while a subscription that is live now was still joining."""
        if (run := self._rooms.run(response_id)) is not None:
            subscription.catch_up(response_id, run.log)
        elif (room := self._rooms.get(subscription.session_id)) is not None:
            self.sync_response(room, response_id)

    # ---- a room lacks something -----------------------------------------------------------------

    def sync_all(self) -> None:
        """The feed was away: read from the logs what it should have brought."""
        for room in self._rooms.values():
            self.sync_session(room)
            for response_id in {rid for s in room.subscriptions for rid in s.cursors}:
                if self._rooms.run(response_id) is None:
                    self.sync_response(room, response_id)

    def sync_session(self, room: Room) -> None:
        """Fetch what the room's subscriptions have missed of the events of the session itself."""
        self._sync(room, room.session_id, partial(self._sync_session, room))

    def sync_response(self, room: Room, response_id: str) -> None:
        """Fetch what the room's subscriptions have missed of an answer."""
        self._sync(room, response_id, partial(self._sync_response, room, response_id))

    def _sync(self, room: Room, log_of: str, read: Callable[[], Awaitable[None]]) -> None:
        """`read` the log of a session or an answer: now, or again if it is being read already."""
        if room.begin_sync(log_of):
            self._rooms.spawn(self._run_sync(room, log_of, read))

    async def _run_sync(self, room: Room, log_of: str, read: Callable[[], Awaitable[None]]) -> None:
        async def read_anew() -> None:
            room.note_reading(log_of)
            await read()

        try:
            while room.subscriptions:
                await until_done(read_anew, lambda: bool(room.subscriptions))
                if not room.must_read_again(log_of):
                    return
        except SessionNotFound:
            await self._data_loss.look_at(room.session_id)
        except ResponseNotFound:  # only where the log is an answer's
            await self._give_up_end(room, log_of)
        finally:
            room.end_sync(log_of)

    async def _sync_session(self, room: Room) -> None:
        await self._data_loss.verify(room.session_id)  # new events may hide that others were lost
        epoch = room.epoch
        events = await self._store.sessions.events(room.session_id, after=room.offset, epoch=epoch)
        if events is None:
            await self._data_loss.look_at(room.session_id, lacking=epoch)
            return
        session = await self._store.sessions.get(None, room.session_id)
        for event in events:
            frame = session_event_frame(session, event.offset, event.data)
            self._put_in_order(room, event.offset, frame)

    async def _sync_response(self, room: Room, response_id: str) -> None:
        record = await self._store.runs.get(None, response_id)
        events = [event for _, event in await self._store.runs.events(response_id)]
        textless = events
        if any(one.sent_ends.is_silent(response_id) for one in room.subscriptions):
            textless = await self._with_whole_end(record, events)
        for subscription in list(room.subscriptions):
            # Who is joining is sent the end with the state, if there is one.
            if not subscription.joining and subscription.wants(response_id):
                is_silent = subscription.sent_ends.is_silent(response_id)
                entries = textless if is_silent else events
                subscription.put_events(response_id, record.fence, 1, entries)
                if not record.is_live:
                    subscription.give_up_end(response_id)

    async def _with_whole_end(self, record: RunRecord, events: list[Event]) -> list[Event]:
        """For who is sent no text: when they need that of the end, it may be stored no more."""
        if not events or not is_done(events[-1]):
            return events
        log = ResponseLog(record.fence, events, await read_base(self._store, record, events))
        return [*events[:-1], log.end_with_text]

    # ---- an answer was lost to another worker ---------------------------------------------------

    def resend(self, response_id: str) -> None:
        """Send the answer as it is stored to those of its room who were shown another one."""
        if (room := self._rooms.of_response(response_id)) is not None:
            self._rooms.spawn(self._resend(room, response_id))

    async def _resend(self, room: Room, response_id: str) -> None:
        read = partial(read_log, self._store, None, response_id)
        try:
            log = await until_done(read, lambda: bool(room.subscriptions))
        except ResponseNotFound:
            for subscription in room.subscriptions:
                subscription.forget(response_id)
            await self._give_up_end(room, response_id)
            return
        if log is None:
            return
        for subscription in room.subscriptions:
            # Who is joining is sent the log with the state; who joined meanwhile was.
            is_due = subscription.doubts(response_id) and subscription.wants(response_id)
            if is_due and not subscription.joining:
                subscription.put_log(response_id, log, 0)
        self.sync_response(room, response_id)  # what came live meanwhile was dropped

    async def _give_up_end(self, room: Room, response_id: str) -> None:
        """The answer is stored nowhere; of a session that is gone, its owner tells the end."""
        try:
            await self._store.sessions.get(None, room.session_id)
        except SessionNotFound:
            await self._data_loss.look_at(room.session_id)
            return
        except StoreUnavailable:
            pass
        for subscription in room.subscriptions:
            subscription.give_up_end(response_id)
