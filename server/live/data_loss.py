"""`DataLoss`: what viewers are sent when Redis has lost something that it had acknowledged.

A flushed or emptied Redis has lost sessions whole: their viewers get `session.deleted`. A replica
that was promoted, or an append-only file with a torn end, has lost the last writes of some: such a
session gets a new epoch, so that no position of the lost history is ever continued in the new one,
and its viewers get `session.subscribed` once more, with `recovered: false` and a snapshot.
"""

import contextlib
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from server.live.retries import until_done
from server.live.rooms import Room, Rooms
from server.live.subscription import Subscription
from server.protocol.server_frames import SessionDeleted, SessionEntry
from sessions.model.errors import SessionNotFound, StoreUnavailable
from sessions.model.records import Session
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")


class DataLoss:
    """Compares what this worker has shown with what the store has."""

    def __init__(
        self,
        rooms: Rooms,
        store: SessionStore,
        publish_session: Callable[[SessionEntry], None],
    ) -> None:
        """`publish_session` shows a session's event to its viewers; see `Hub`."""
        self._rooms = rooms
        self._store = store
        self._publish_session = publish_session

    def look_at_all(self) -> None:
        """The store was emptied. The owner of an answer notifies its session's viewers itself."""
        for session_id in self._rooms.unanswered():
            self._rooms.spawn(self.look_at(session_id))

    async def verify(self, session_id: str) -> bool:
        """Give a session that began on another Redis a new epoch; False if that cannot be stored.

        Then Redis takes no writes, and positions under the present epoch prove nothing. Raises
        `SessionNotFound`.
        """
        try:
            await self._store.sessions.verify_epoch(session_id)
        except StoreUnavailable:
            return False
        return True

    async def renew(self, session_id: str) -> None:
        """Begin a new epoch: the log of one of the session's answers went back in time."""

        async def renew() -> None:
            session = await self._store.sessions.get(None, session_id)
            await self._store.sessions.renew_epoch(session_id, session.epoch)

        with contextlib.suppress(SessionNotFound):  # the answer finds out by itself
            await until_done(renew)

    async def look_at(self, session_id: str, *, lacking: str | None = None) -> None:
        """Tell the session's viewers here what has become of it.

        `lacking`: the epoch of which they lack events that the log does not have.
        """
        room = self._rooms.get(session_id)
        if room is None:
            return

        async def compare() -> None:
            shown = room.offset
            session = await self._store.sessions.get(None, session_id)
            if session.epoch == room.epoch and session.offset < shown:
                await self._store.sessions.renew_epoch(session_id, room.epoch)
                session = await self._store.sessions.get(None, session_id)
            if session.epoch != room.epoch or lacking == room.epoch:
                self._rejoin_all(room, session)

        try:
            await until_done(compare, lambda: self._rooms.get(session_id) is room)
        except SessionNotFound:
            await self._tell_gone(room)

    def _rejoin_all(self, room: Room, session: Session) -> None:
        logger.warning("session log does not go on", session_id=session.id)
        room.begin_anew(session.epoch, session.offset)
        for subscription in room.subscriptions:
            if subscription.rejoin is not None and subscription.only is None:
                subscription.forget_ends()
                subscription.begin_join()
                self._rooms.spawn(self._rejoin(room, subscription))

    async def _rejoin(self, room: Room, subscription: Subscription) -> None:
        assert subscription.rejoin is not None
        async with subscription.sending:  # one state after the other
            try:
                await until_done(subscription.rejoin, lambda: subscription in room.subscriptions)
            except SessionNotFound:
                # Nothing would end the join, and the news may have been dropped before it.
                frame = await self._gone(room)
                offset = max(room.offset, subscription.offset + 1)
                subscription.put_session_event(offset, replace(frame, offset=offset))
                subscription.end_join(subscription.offset)

    async def _tell_gone(self, room: Room) -> None:
        """The session does not exist any more, and its deletion was not heard."""
        self._publish_session(await self._gone(room))

    async def _gone(self, room: Room) -> SessionDeleted:
        try:
            was_deleted = await self._store.sessions.was_deleted(room.session_id)
        except StoreUnavailable:
            was_deleted = False
        return SessionDeleted(
            session_id=room.session_id,
            offset=room.offset + 1,
            by="user" if was_deleted else "store_lost",
        )
