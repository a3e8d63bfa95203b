"""`QueueChanges`: what clients do with the queue of a session."""

import contextlib
import hashlib
import time
from functools import partial
from typing import Any

import orjson
from msgspec import UNSET

from server.commands.queue.queue_runner import QueueRunner
from server.protocol.client_frames import (
    AddToQueue,
    QueueFrame,
    RemoveFromQueue,
    SendFromQueue,
    SteerResponse,
    UpdateQueue,
)
from server.protocol.objects import Steer
from server.protocol.server_frames import QueueAccepted, SteerAccepted
from sessions.model.errors import ResponseNotFound, SessionNotFound, StoreUnavailable
from sessions.model.ids import check_response_id, check_session_id, session_of
from sessions.model.queue import Queue, QueuedInput, derived_item_id
from sessions.model.replies import AddedInput
from sessions.store.store import SessionStore

MAX_TRIES = 3  # each means that another answer began in between


class QueueChanges:
    """The queues of one worker's clients. Any method raises `ApiError` and the store's errors."""

    def __init__(self, store: SessionStore, runner: QueueRunner) -> None:
        self._store = store
        self._runner = runner

    async def change(self, uid: str, frame: QueueFrame) -> QueueAccepted | SteerAccepted:
        """Carry out what a frame asks; the viewers get `queue.updated` from the store."""
        match frame:
            case AddToQueue():
                return await self._add(uid, frame)
            case UpdateQueue():
                return await self._update(uid, frame)
            case RemoveFromQueue():
                return await self._remove(uid, frame)
            case SendFromQueue():
                return await self._send(uid, frame)
            case SteerResponse():
                return await self.steer(uid, frame)

    async def _add(self, uid: str, frame: AddToQueue) -> QueueAccepted:
        check_session_id(frame.session_id)
        item = _input(frame.session_id, frame)
        added = await self._store.queues.add(uid, frame.session_id, item, frame.place)
        self._look_at(frame.session_id, added)
        return _accepted(frame.session_id, item.id, added)

    async def _update(self, uid: str, frame: UpdateQueue) -> QueueAccepted:
        check_session_id(frame.session_id)
        written = await self._store.queues.change(
            uid,
            frame.session_id,
            lambda queue: queue.changed(
                frame.item_id,
                text=None if frame.input is None else frame.text,
                settings=None if frame.settings is None else frame.settings.given(),
                place=frame.place,
            ),
        )
        self._runner.advance_soon(frame.session_id)  # it may have been refused as it was
        return _accepted(frame.session_id, frame.item_id, AddedInput("waiting", written=written))

    async def _remove(self, uid: str, frame: RemoveFromQueue) -> QueueAccepted:
        check_session_id(frame.session_id)
        await self._store.queues.remove(uid, frame.session_id, frame.item_id)
        self._runner.advance_soon(frame.session_id)  # others may have waited for it
        return _accepted(frame.session_id, frame.item_id, AddedInput("removed"))

    async def _send(self, uid: str, frame: SendFromQueue) -> QueueAccepted:
        """Ask one item now, or go on with a queue that is paused."""
        check_session_id(frame.session_id)
        if frame.item_id is None:
            await self._store.queues.change(uid, frame.session_id, Queue.resumed)
            self._runner.advance_soon(frame.session_id)
            return QueueAccepted(session_id=frame.session_id, status="waiting")
        active = (await self._store.sessions.get(uid, frame.session_id)).active_response_id
        for _ in range(MAX_TRIES):
            send = partial(Queue.sent, item_id=frame.item_id, steers=active)
            written = await self._store.queues.change(uid, frame.session_id, send)
            if written.active_response_id == active:
                break
            active = written.active_response_id  # another answer has begun meanwhile
        self._runner.advance_soon(frame.session_id)
        return _accepted(frame.session_id, frame.item_id, AddedInput("waiting", written=written))

    async def steer(
        self, uid: str, frame: SteerResponse, brought: dict[str, Any] | None = None
    ) -> SteerAccepted:
        """Keep the words first; from then on no death of a process loses them.

        `brought` are those of a door, as a `QueuedInput` has them.
        """
        response_id = frame.previous_response_id
        check_response_id(response_id)
        session_id = session_of(response_id)
        item = _input(session_id, frame, steers=response_id, brought=brought)
        try:
            added = await self._store.queues.add(uid, session_id, item)
        except SessionNotFound:  # which the caller has not named
            raise ResponseNotFound from None
        if added.written is not None and added.written.active_response_id == response_id:
            with contextlib.suppress(StoreUnavailable):  # the words are kept: a sweep looks again
                await self._runner.steer(uid, response_id, frame.text)
        else:
            self._look_at(session_id, added)
        return SteerAccepted(
            steer=Steer(id=item.id, previous_response_id=response_id),
            status=added.status,
            response_id=added.response_id or UNSET,
        )

    def _look_at(self, session_id: str, added: AddedInput) -> None:
        """A repeat looks, too: the worker that kept the words may have died the next moment."""
        if added.status == "waiting":
            self._runner.advance_soon(session_id)


def _accepted(session_id: str, item_id: str, added: AddedInput) -> QueueAccepted:
    return QueueAccepted(
        session_id=session_id,
        item_id=item_id,
        status=added.status,
        response_id=added.response_id or UNSET,
    )


def _input(
    session_id: str,
    frame: AddToQueue | SteerResponse,
    *,
    steers: str | None = None,
    brought: dict[str, Any] | None = None,
) -> QueuedInput:
    settings = frame.settings.given()
    asked: list[Any] = [frame.text, settings, steers]
    body = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    return QueuedInput(
        id=derived_item_id(session_id, frame.idempotency_key),
        idempotency_key=frame.idempotency_key,
        body_hash=hashlib.sha256(body).hexdigest()[:32],
        text=frame.text,
        settings=settings,
        created_at=time.time_ns() // 1_000_000,
        now=steers is not None,
        steers=steers,
        brought=brought,
    )
