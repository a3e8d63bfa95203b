"""`QueueRunner`: asks what waits in a session's queue, as soon as its turn comes.

What follows calls of tools that the server has carried out comes before all of it. The worker that
ends an answer looks at the queue at once. Each worker also looks, every second or so, at queues
that nobody has looked at in time: so what was kept is asked although that worker has died. Several
may try at a time; the store lets one begin.
"""

import asyncio
import contextlib
import random

import msgspec
import structlog

from server.commands.create_response import ResponseCreator
from server.commands.doors.brought import Brought
from server.commands.queue.prompt_ahead import PromptAhead
from server.config.intervals import Intervals
from server.generation.prompts import PromptBuilders
from server.protocol.client_frames import CreateResponse, Settings
from server.protocol.errors import ApiError
from server.protocol.store_errors import translated
from server.runs.runs import Runs
from server.runs.state import RunState
from sessions.model.errors import (
    QueueChanged,
    ResponseInProgress,
    SessionError,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.queue import NextRound, Queue, QueuedInput, TakenInput
from sessions.model.records import Session
from sessions.model.replies import Turn
from sessions.store.queues import QueueIndex
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

# What refuses for the moment: the question waits on, and is asked again by itself.
PASSING = frozenset(
    ("draining", "engine_unavailable", "queue_full", "rate_limited", "store_unavailable")
)
AGAIN_MS = 1_000
AHEAD_SECONDS = 1.0  # for which a prompt is kept: its messages may be deleted any time
DISABLED_MS = 60_000  # until a look whether a user may ask again


class QueueRunner:
    """One worker's eye on the queues of all sessions."""

    def __init__(
        self,
        *,
        store: SessionStore,
        runs: Runs,
        creator: ResponseCreator,
        prompts: PromptBuilders,
        intervals: Intervals,
    ) -> None:
        self._store = store
        self._runs = runs
        self._creator = creator
        self._prompts = prompts
        self._intervals = intervals
        self._ahead: dict[str, PromptAhead] = {}  # by session, for a moment
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
        for index in (self._store.queues.rounds, self._store.queues.index):
            await self._sweep(index)

    async def _sweep(self, index: QueueIndex) -> None:
        for session_id, mark in (await index.due()).items():
            try:
                if not await self.advance(session_id):
                    await index.forget(session_id, mark)
            except SessionNotFound:
                await index.forget(session_id, mark)
            except StoreUnavailable:
                raise
            except Exception:  # what is wrong with one keeps no other one waiting
                logger.exception("queue cannot be asked", session_id=session_id)

    def advance_soon(self, session_id: str, turn: Turn | None = None) -> None:
        """Look at a queue; nobody waits for it, and the sweep looks again."""
        self._runs.spawn(self._advance_quietly(session_id, turn))

    async def _advance_quietly(self, session_id: str, turn: Turn | None) -> None:
        with contextlib.suppress(StoreUnavailable, SessionNotFound):
            await self.advance(session_id, turn)

    async def advance(self, session_id: str, turn: Turn | None = None) -> bool:
        """Begin what comes first, if its turn has come; whether the queue must be looked at again.

        An answer that is to be steered ends first; its end leads here again, most often with
        what has its `turn` then. Raises `StoreUnavailable` and `SessionNotFound`.
        """
        turn = turn or await self._store.queues.turn(session_id)
        session, queue = turn.session, turn.queue
        due, following = queue.due, queue.next_round
        if not due and following is None:
            return False
        active = session.active_response_id
        if active is None:
            if turn.is_user_gone:
                index = self._store.queues.index if following is None else self._store.queues.rounds
                await index.look_later(session_id, DISABLED_MS)
                return True
            if following is not None:
                await self._begin_round(session, following)
                return True
            await self._begin(session, TakenInput(queue, due))
        elif due and due[0].steers == active:
            await self.steer(session.uid, active, TakenInput(queue, due).text)
        return True

    async def steer(self, uid: str, response_id: str, text: str) -> None:
        """End an answer; what is first in the queue follows it, most likely this text."""
        run = self._runs.local(response_id)
        is_first = run is not None and run.state is RunState.RUNNING
        await self._runs.end_for_another(uid, response_id, "steered")
        if run is not None and is_first and run.prompt is not None and not run.has_calls:
            ahead = PromptAhead(run, text, self._prompts, self._store.messages)
            self._ahead[run.session_id] = ahead
            loop = asyncio.get_running_loop()
            loop.call_later(AHEAD_SECONDS, self._ahead.pop, run.session_id, None)

    async def _begin(self, session: Session, taken: TakenInput) -> None:
        first = taken.items[0]
        try:
            frame = CreateResponse(
                session_id=session.id,
                idempotency_key=first.idempotency_key,
                input=taken.text,
                settings=msgspec.convert(first.settings, Settings),
            )
            brought = Brought.of_taken(taken, session.head)
            await self._creator.create(
                session.uid,
                frame,
                taken=taken,
                session=session,
                brought=brought,
                ahead=self._ahead.pop(session.id, None),
            )
        except (QueueChanged, ResponseInProgress):
            pass  # somebody was faster
        except (StoreUnavailable, SessionNotFound):
            raise
        except (ApiError, SessionError, msgspec.ValidationError) as error:
            await self._refuse(session, first, error)

    async def _begin_round(self, session: Session, following: NextRound) -> None:
        """Ask with what tools gave back. What can never be asked gives way to the queue."""
        queues = self._store.queues
        try:
            if await self._is_passed_over(session, following):  # by an older worker
                await self._drop(session.id, following)
                return
            frame = CreateResponse(
                session_id=session.id,
                idempotency_key=following.idempotency_key,
                input=[],
                parent_id=following.message_id,
                priority=following.priority,
                traceparent=following.traceparent,
            )
            await self._creator.create(session.uid, frame, session=session, next_round=following)
        except (QueueChanged, ResponseInProgress):
            pass  # somebody was faster
        except (StoreUnavailable, SessionNotFound):
            raise
        except (ApiError, SessionError) as error:
            refusal = translated(error) if isinstance(error, SessionError) else error
            code = "internal" if refusal is None else refusal.code
            if code in PASSING:
                await queues.rounds.look_later(session.id, AGAIN_MS)
                return
            logger.warning("next round dropped", session_id=session.id, code=code)
            await self._drop(session.id, following)

    async def _drop(self, session_id: str, following: NextRound) -> None:
        await self._store.queues.drop_round(session_id, following)
        self.advance_soon(session_id)  # something else may have waited for it

    async def _is_passed_over(self, session: Session, following: NextRound) -> bool:
        """Whether the message that it answers is answered already."""
        message_id = following.message_id
        newest = await self._store.messages.newest_below(session.uid, session.id, message_id)
        return newest != message_id

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
