"""What each frame of a client does. One `Handlers` per connection; one frame at a time."""

from collections.abc import Callable
from typing import Protocol

import msgspec
import orjson
import structlog
from msgspec import UNSET, UnsetType
from starlette.requests import HTTPConnection

from server.access.audit import Actor
from server.access.identities import User
from server.commands.cancel_response import Asker, Canceller
from server.commands.create_session import create_session
from server.commands.delete_session import delete_session
from server.commands.fence import fence_of
from server.commands.services import Services
from server.commands.tools.consents import consent_to_call
from server.commands.update_session import update_session
from server.live.response_log import response_frame
from server.live.subscription import Subscription
from server.protocol.client_frames import (
    AddToQueue,
    CancelResponse,
    ClientFrame,
    ConsentToCall,
    CreateResponse,
    CreateSession,
    DeleteSession,
    RemoveFromQueue,
    ResponsePosition,
    ResumeResponse,
    SendFromQueue,
    SteerResponse,
    SubscribeSession,
    UnsubscribeSession,
    UpdateQueue,
    UpdateSession,
)
from server.protocol.encoding import of_stored
from server.protocol.entries import session_event_frame
from server.protocol.errors import ApiError
from server.protocol.objects import MessageObject, QueueObject, SessionObject, Snapshot
from server.protocol.server_frames import (
    SessionCreated,
    SessionDeleted,
    SessionSubscribed,
    SessionUnsubscribed,
    SessionUpdated,
)
from server.protocol.store_errors import translated
from sessions.model.errors import ResponseNotFound, SessionError
from sessions.model.events import ObjectEvent
from sessions.model.ids import check_response_id, check_session_id, session_of
from sessions.model.records import Session
from sessions.model.replies import MessagePage

logger = structlog.get_logger("server")

MAX_SNAPSHOT_BYTES = 192 * 1024  # of its messages
MAX_REPLY_BYTES = 248 * 1024  # of messages and session, whose system text may be long


class Client(Asker, Protocol):
    """Who sends the frames: a `Connection`."""

    user: User

    @property
    def actor(self) -> Actor: ...

    @property
    def request(self) -> HTTPConnection | None: ...


class Handlers:
    """Raises `ApiError` for what is refused; the connection answers it with an `error` frame."""

    def __init__(self, client: Client, services: Services) -> None:
        self._client = client
        self._services = services
        self._store = services.store
        self._hub = services.hub
        self._catch_up = services.hub.catch_up
        self._runs = services.runs
        self._subscriptions: dict[str, Subscription] = {}
        self._parted: set[Subscription] = set()  # of sessions that are deleted
        self.canceller = Canceller(client, services, self._subscriptions)

    async def handle(self, frame: ClientFrame, asked: int) -> None:
        """`asked`: the number that the connection's `SentEnds` gave the frame when it was read."""
        try:
            await self._handle(frame, asked)
        except SessionError as error:
            refusal = translated(error)
            if refusal is None:
                raise
            raise refusal from error

    async def _handle(self, frame: ClientFrame, asked: int) -> None:
        match frame:
            case CreateSession():
                await self._create_session(frame)
            case SubscribeSession():
                await self._subscribe(frame, asked)
            case UnsubscribeSession():
                await self._unsubscribe(frame)
            case UpdateSession():
                await self._update_session(frame)
            case DeleteSession():
                await self._delete_session(frame)
            case CreateResponse():
                await self._create_response(frame, asked)
            case CancelResponse():
                await self.canceller.cancel(frame, asked)
            case ResumeResponse():
                await self._resume(frame, asked)
            case (
                AddToQueue() | UpdateQueue() | RemoveFromQueue() | SendFromQueue() | SteerResponse()
            ):
                reply = await self._services.queue_changes.change(self._uid, frame)
                self._client.outbox.put(reply, event_id=frame.event_id)
            case ConsentToCall():
                accepted = await consent_to_call(self._services, self._uid, frame)
                self._client.outbox.put(accepted, event_id=frame.event_id)

    async def leave_all(self) -> None:
        """The connection is gone: it watches nothing any more. Answers go on."""
        self.canceller.close()
        for subscription in [*self._subscriptions.values(), *self._parted]:
            await self._hub.leave(subscription)
        self._subscriptions.clear()
        self._parted.clear()

    @property
    def _uid(self) -> str:
        return self._client.uid

    # ---- sessions -------------------------------------------------------------------------------

    async def _create_session(self, frame: CreateSession) -> None:
        self._check_subscriptions()
        created = await create_session(self._services, self._uid, frame, besides=self._client)
        session = created.session
        if session.id not in self._subscriptions:
            subscription = self._new_subscription(session.id)
            await self._join(subscription)
            subscription.end_join(session.offset)
        reply = SessionCreated.of(session, replayed=created.replayed)
        self._client.outbox.put(reply, event_id=frame.event_id)

    async def _subscribe(self, frame: SubscribeSession, asked: int) -> None:
        check_session_id(frame.session_id)
        for listed in frame.responses:
            check_response_id(listed.response_id)
        if frame.observe:
            await self._services.auditor.observe(self._client.actor, frame.session_id)
        uid = None if frame.observe else self._uid
        # Where there is no such session any more, the ends of its answers are still to be sent.
        session = await self._store.sessions.get(uid, frame.session_id)
        await self._leave(session.id)
        if not await self._hub.data_loss.verify(session.id):
            frame = msgspec.structs.replace(frame, after=None)
        subscription = self._new_subscription(session.id, observes=frame.observe)
        await self._join(subscription)
        try:
            async with subscription.sending:
                await self._send_state(subscription, frame, asked)
        except BaseException:
            await self._leave(session.id)
            raise

    async def _send_state(
        self, subscription: Subscription, frame: SubscribeSession, asked: int | None = None
    ) -> None:
        """`session.subscribed`, missed events or a snapshot, then the answers in progress.

        The end of an answer that ends while the others are read may be sent earlier; it is not sent
        again, unless it was `asked` for after that.
        """
        session = await self._store.sessions.get(subscription.uid, frame.session_id)
        missed = None
        if frame.after is not None and frame.after.epoch == session.epoch:
            missed = await self._store.sessions.events(
                session.id, after=frame.after.offset, epoch=frame.after.epoch
            )
        live = await self._store.responses.live(session.id)
        active = live.ids
        # A run here may have begun a moment ago, or wait for the store to take its end.
        active += [
            run.response_id
            for run in self._runs.local_of_session(session.id)
            if run.response_id not in active and not run.done.is_set()
        ]
        queue = await self._store.queues.get(subscription.uid, session.id)
        viewers = self._hub.viewers.total(session.id)
        shown: Snapshot | UnsetType = UNSET
        if missed is None:
            page = await self._store.messages.path(subscription.uid, session.id, limit=frame.limit)
            shown = snapshot(session, page)
        reply = SessionSubscribed(
            session_id=session.id,
            epoch=session.epoch,
            offset=session.offset,
            recovered=missed is not None,
            active_responses=active,
            viewers=viewers,
            snapshot=shown,
            queue=of_stored(QueueObject, queue.wire(whole=False)) if queue.items else UNSET,
        )
        positions = {p.response_id: p for p in frame.responses}
        # Joining again, it may have missed the ends of answers that it had begun to show.
        listed = dict.fromkeys([*active, *positions, *subscription.open])
        # All is read before anything is said: a store that fails must not unsay it.
        answers = {
            response_id: await self._prepare(
                subscription, response_id, positions.get(response_id), asked
            )
            for response_id in listed
            if session_of(response_id) == session.id
        }
        self._client.outbox.put(reply, event_id=frame.event_id)
        for event in missed or ():
            self._client.outbox.put(session_event_frame(session, event.offset, event.data))
        last = missed[-1].offset if missed else session.offset
        for put_answer in answers.values():
            put_answer()
        subscription.end_join(max(last, session.offset))
        # What was published between attaching and going live is beyond the cursors: fetch it.
        for response_id in active:
            if response_id in subscription.cursors:
                self._catch_up.fill_gap(subscription, response_id)

    async def _prepare(
        self,
        subscription: Subscription,
        response_id: str,
        position: ResponsePosition | None,
        asked: int | None,
    ) -> Callable[[], None]:
        """One answer's state; one that is no longer known is skipped: its text is a message."""
        try:
            # It exists, and is theirs.
            await fence_of(self._services, subscription.uid, response_id)
            if position is None:
                return await self._catch_up.prepare(subscription, response_id)
            return await self._catch_up.prepare(
                subscription,
                response_id,
                position.after_sequence_number,
                position.fence,
                asked=asked,
            )
        except ResponseNotFound:
            return lambda: None

    async def _unsubscribe(self, frame: UnsubscribeSession) -> None:
        check_session_id(frame.session_id)
        if not await self._leave(frame.session_id):
            raise ApiError("not_subscribed", "not subscribed to that session", param="session_id")
        self._client.outbox.put(
            SessionUnsubscribed(session_id=frame.session_id), event_id=frame.event_id
        )

    async def _update_session(self, frame: UpdateSession) -> None:
        subscription = self._expect_reply(frame, SessionUpdated)
        try:
            session = await update_session(self._services, self._uid, frame, besides=self._client)
        except BaseException:
            if subscription is not None:
                subscription.expect_reply(SessionUpdated, None)
            raise
        if subscription is None:
            self._client.outbox.put(SessionUpdated.of(session, "user"), event_id=frame.event_id)

    async def _delete_session(self, frame: DeleteSession) -> None:
        subscription = self._expect_reply(frame, SessionDeleted)
        deleted = await delete_session(
            self._services, self._uid, frame.session_id, besides=self._client
        )
        if subscription is None:
            self._client.outbox.put(deleted, event_id=frame.event_id)

    def _expect_reply(
        self, frame: UpdateSession | DeleteSession, kind: type[SessionUpdated | SessionDeleted]
    ) -> Subscription | None:
        """The asker's own subscription, which will bring the reply; None if it has none."""
        subscription = self._subscriptions.get(frame.session_id)
        if subscription is None or not subscription.is_own:
            return None
        subscription.expect_reply(kind, frame.event_id)
        return subscription

    def _new_subscription(
        self, session_id: str, only: set[str] | None = None, *, observes: bool = False
    ) -> Subscription:
        self._check_subscriptions()
        subscription = Subscription(
            self._client,
            session_id,
            only,
            observes=observes,
            on_gone=self._part_with,
            on_idle=self._leave_soon,
        )
        again = SubscribeSession(session_id=session_id, observe=observes)
        subscription.rejoin = lambda: self._send_state(subscription, again)
        return subscription

    def _part_with(self, subscription: Subscription) -> None:
        """Its session is deleted: it counts no more, and stays for ends that may come late."""
        if self._subscriptions.get(subscription.session_id) is subscription:
            del self._subscriptions[subscription.session_id]
            self._parted.add(subscription)

    def _check_subscriptions(self) -> None:
        if len(self._subscriptions) >= self._services.limits.max_subscriptions:
            raise ApiError("too_many_subscriptions", "unsubscribe from another session first")

    async def _join(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.session_id] = subscription
        try:
            await self._hub.join(subscription)
        except BaseException:
            await self._leave(subscription.session_id)
            raise

    async def _leave(self, session_id: str) -> bool:
        subscription = self._subscriptions.pop(session_id, None)
        if subscription is None:
            return False
        await self._hub.leave(subscription)
        return subscription.only is None

    def _leave_soon(self, subscription: Subscription) -> None:
        self._hub.spawn(self._leave_idle(subscription))

    async def _leave_idle(self, subscription: Subscription) -> None:
        """Nothing can come by it: its session is deleted, or it was there for answers alone."""
        if subscription in self._parted:
            self._parted.discard(subscription)
            await self._hub.leave(subscription)
        elif self._subscriptions.get(subscription.session_id) is subscription:
            if subscription.is_idle:
                await self._leave(subscription.session_id)

    # ---- responses ------------------------------------------------------------------------------

    async def _create_response(self, frame: CreateResponse, asked: int) -> None:
        check_session_id(frame.session_id)
        if frame.priority and not self._client.user.is_admin:
            raise ApiError("forbidden", "priority needs the role admin", param="priority")
        subscription = self._subscriptions.get(frame.session_id)
        if subscription is None or not subscription.is_own:
            # Foreign: not found, not this.
            await self._store.sessions.get(self._uid, frame.session_id)
            raise ApiError("not_subscribed", "subscribe to the session first", param="session_id")
        response_id, replayed = await self._services.creator.create(
            self._uid, frame, subscription, self._client.request
        )
        if self.canceller.waiting:
            self.canceller.carry_out_waiting(response_id)
        if replayed:
            await self._replay(subscription, frame, response_id, asked)

    async def _replay(
        self, subscription: Subscription, frame: CreateResponse, response_id: str, asked: int
    ) -> None:
        """The same key again: the original `response.created`, then what is missing."""
        events = await self._store.runs.events(response_id)
        run = self._runs.local(response_id)
        log = run.events if run is not None else [event for _, event in events]
        created = log[0] if log else None
        if not isinstance(created, ObjectEvent):
            raise ApiError("response_not_found", "that response is no longer kept")
        fence = await fence_of(self._services, self._uid, response_id)
        self._client.outbox.put(
            response_frame(1, fence, created, replayed=True, event_id=frame.event_id)
        )
        if response_id not in subscription.cursors:
            await self._catch_up.attach(subscription, response_id, 1, asked=asked)

    async def _resume(self, frame: ResumeResponse, asked: int) -> None:
        check_response_id(frame.response_id)
        session_id = session_of(frame.response_id)
        subscription = self._subscriptions.get(session_id)
        uid = self._uid if subscription is None else subscription.uid
        await fence_of(self._services, uid, frame.response_id)  # it exists, and is theirs
        await self._store.sessions.get(uid, session_id)
        if subscription is None:
            subscription = self._new_subscription(session_id, only=set())
            await self._join(subscription)
            subscription.end_join(0)
        if subscription.only is not None:
            subscription.only.add(frame.response_id)
        after = frame.after_sequence_number
        await self._catch_up.attach(
            subscription, frame.response_id, after, frame.fence, asked=asked
        )


def snapshot(session: Session, page: MessagePage) -> Snapshot:
    """The newest messages, cut from the old end so that the frame stays small.

    The newest is there in any case; without its content, if that alone is more.
    """
    room = min(MAX_SNAPSHOT_BYTES, MAX_REPLY_BYTES - len(orjson.dumps(session.wire())))
    shown = page.cut(room)
    return Snapshot(
        session=of_stored(SessionObject, session.wire()),
        messages=[
            of_stored(MessageObject, message.wire())
            if message.wire_bytes <= room
            else of_stored(MessageObject, message.event_wire())
            for message in shown.messages
        ],
        has_more=shown.has_more,
    )
