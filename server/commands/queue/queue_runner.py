"""`QueueRunner`: asks what waits in a session's queue, as soon as its turn comes.

The worker that ends an answer looks at the queue at once. Each worker also looks, every second or
so, at queues that nobody has looked at in time: so what was kept is asked although that worker has
died. Several may try at a time; the store lets one begin.
"""

import asyncio
import contextlib
import random

import msgspec
import structlog

from server.commands.create_response import ResponseCreator
from server.config.intervals import Intervals
from server.protocol.client_frames import CreateResponse, Settings
from server.protocol.errors import ApiError
from server.protocol.store_errors import translated
from server.runs.runs import Runs
from sessions.model.errors import (
    QueueChanged,
    ResponseInProgress,
    SessionError,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.queue import Queue, QueuedInput, TakenInput
from sessions.model.records import Session
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

# What refuses for the moment: the question waits on, and is asked again by itself.
PASSING = frozenset(
    ("draining", "engine_unavailable", "queue_full", "rate_limited", "store_unavailable")
)
AGAIN_MS = 1_000
DISABLED_MS = 60_000  # until a look whether a user may ask again


class QueueRunner:
    """One worker's eye on the queues of all sessions."""

    def __init__(
        self, *, store: SessionStore, runs: Runs, creator: ResponseCreator, intervals: Intervals
    ) -> None:
        self._store = store
        self._runs = runs
        self._creator = creator
        self._intervals = intervals
        runs.on_queue = self.advance_soon

    async def sweep_forever(self) -> None:
        """Look at queues that are due."""
        while True:
            await asyncio.sleep(self._intervals.sweep * random.uniform(0.8, 1.2))
            try:
                if not self._runs.draining:
                    await self.sweep()
            except StoreUnavailable:
                pass
            except Exception:
                logger.exception("sweep of queues failed")

    async def sweep(self) -> None:
        """Look once. Raises `StoreUnavailable`."""
        for session_id, mark in (await self._store.queues.index.due()).items():
            try:
                if not await self.advance(session_id):
                    await self._store.queues.index.forget(session_id, mark)
            except SessionNotFound:
                await self._store.queues.index.forget(session_id, mark)
            except StoreUnavailable:
                raise
            except Exception:  # what is wrong with one keeps no other one waiting
                logger.exception("queue cannot be asked", session_id=session_id)

    def advance_soon(self, session_id: str) -> None:
        """Look at a queue; nobody waits for it, and the sweep looks again."""
        self._runs.spawn(self._advance_quietly(session_id))

    async def _advance_quietly(self, session_id: str) -> None:
        with contextlib.suppress(StoreUnavailable, SessionNotFound):
            await self.advance(session_id)

    async def advance(self, session_id: str) -> bool:
        """Begin what comes first, if its turn has come; whether the queue must be looked at again.

        An answer that is to be steered ends first; its end leads here again. Raises
        `StoreUnavailable` and `SessionNotFound`.
        """
        session, queue = await asyncio.gather(
            self._store.sessions.get(None, session_id), self._store.queues.get(None, session_id)
        )
        due = queue.due
        if not due:
            return False
        active = session.active_response_id
        if active is None:
            if await self._store.sessions.is_user_gone(session.uid):
                await self._store.queues.index.look_later(session_id, DISABLED_MS)
                return True
            await self._begin(session, TakenInput(queue, due))
        elif due[0].steers == active:
            await self.steer(session.uid, active)
        return True

    async def steer(self, uid: str, response_id: str) -> None:
        """End an answer; what is first in the queue follows it."""
        await self._runs.end_for_another(uid, response_id, "steered")

    async def _begin(self, session: Session, taken: TakenInput) -> None:
        first = taken.items[0]
        try:
            frame = CreateResponse(
                session_id=session.id,
                idempotency_key=first.idempotency_key,
                input=taken.text,
                settings=msgspec.convert(first.settings, Settings),
            )
            await self._creator.create(session.uid, frame, taken=taken, session=session)
        except (QueueChanged, ResponseInProgress):
            pass  # somebody was faster
        except (StoreUnavailable, SessionNotFound):
            raise
        except (ApiError, SessionError, msgspec.ValidationError) as error:
            await self._refuse(session, first, error)

    async def _refuse(self, session: Session, tried: QueuedInput, error: Exception) -> None:
        """Wait for what passes; say at the item what does not: its user must change something."""
        refusal = translated(error) if isinstance(error, SessionError) else error
        if not isinstance(refusal, ApiError):
            refusal = ApiError("invalid_field", "these settings are not known here")
        if refusal.code in PASSING:
            await self._store.queues.index.look_later(session.id, AGAIN_MS)
            return
        logger.info("queued input refused", session_id=session.id, code=refusal.code)

        def refused(queue: Queue) -> Queue:
            return queue.refused(tried, refusal.code, refusal.message)

        await self._store.queues.change(session.uid, session.id, refused)
