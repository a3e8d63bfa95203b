"""Stop: which answers a frame means, and what its sender hears until they have ended."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from server.commands.services import Services
from server.engines.client import EngineError
from server.live.ear import Ear
from server.live.response_log import ResponseLog, is_done, put_event, read_log
from server.live.retries import until_done
from server.live.sent_ends import Stopped
from server.live.subscription import Subscription, Watcher
from server.protocol.client_frames import CancelResponse
from server.protocol.entries import is_final
from server.protocol.errors import ApiError, invalid_field
from server.protocol.server_frames import ResponseCancelling
from server.protocol.store_errors import translate_store_errors
from server.runs.run import Run
from server.runs.stop import Stop, StoredStop, cancel_command
from sessions.background import Background
from sessions.model.errors import (
    ItemNotFound,
    ResponseNotFound,
    RunEnded,
    SessionNotFound,
    StoreUnavailable,
)
from sessions.model.ids import check_response_id, check_session_id, session_of
from sessions.model.queue import QUEUED, REMOVED, derived_item_id

logger = structlog.get_logger("server")

DURABLE_WAIT_SECONDS = 0.05  # before `response.cancelling` goes out as `durable: false`
REMOTE_POLL_SECONDS = (0.02, 0.05, 0.1)  # then every 0.1 s
SILENT_OWNER_SECONDS = 2.0
DELETED_END_SECONDS = 2.0  # for the owner of a deleted answer to tell its end


class Asker(Watcher, Protocol):
    """Who asks for stops: a connection, or one HTTP request."""

    def put_error(self, error: ApiError, event_id: str | None) -> None: ...


@dataclass(frozen=True, slots=True)
class WaitingStop:
    """A stop that was read, and is queued behind earlier frames."""

    frame: CancelResponse
    handled: frozenset[str] = frozenset()  # answers that the reader has stopped for it


class Canceller:
    """The stops of one connection; `subscriptions` are those of its handlers."""

    def __init__(
        self,
        connection: Asker,
        services: Services,
        subscriptions: Mapping[str, Subscription],
    ) -> None:
        self._connection = connection
        self._sent_ends = connection.sent_ends
        self._store = services.store
        self._hub = services.hub
        self._runs = services.runs
        self._takeover = services.takeover
        self._subscriptions = subscriptions
        self._background = Background(ApiError, EngineError)
        self._followed: set[str] = set()  # answers whose end this connection is waiting for
        self.waiting: dict[int, WaitingStop] = {}  # by the number of the frame, from `SentEnds.ask`

    @property
    def _uid(self) -> str:
        return self._connection.uid

    def close(self) -> None:
        """The connection is gone: nobody hears of it any more. What was stopped stays stopped."""
        self._background.cancel()

    def close_gates(self, frame: CancelResponse, asked: int) -> None:
        """Called by the reader, before anything is awaited: stop what this worker produces.

        So these stops wait neither for earlier frames nor for the store. `asked` is the frame's
        number, from `SentEnds.ask`.
        """
        handled = self._close_gates(WaitingStop(frame), asked)
        self.waiting[asked] = WaitingStop(frame, handled)

    def carry_out_waiting(self, response_id: str) -> None:
        """An answer has just begun: the stops that were read meanwhile close its gate.

        Called before the event loop has looked at a socket again, so not even the first token
        slips out; the stops are answered when their turn comes.
        """
        run = self._runs.local(response_id)
        for stop in self.waiting.values() if run is not None else ():
            if run in self._local_runs(stop.frame):
                self._stop_local(run, replace(stop.frame, seen_sequence_number=None))

    def _close_gates(self, stop: WaitingStop, asked: int) -> frozenset[str]:
        """Stop what this worker produces, besides what was handled; returns all of it together."""
        runs = [run for run in self._local_runs(stop.frame) if run.response_id not in stop.handled]
        handled = stop.handled.union(run.response_id for run in runs)
        frame = _without_seen(stop.frame, handled | self._shown(stop.frame))
        for run in runs:
            self._stop_local(run, frame)
            self._start(self._cancel_one(run.response_id, frame, asked))
        return handled

    def _shown(self, frame: CancelResponse) -> set[str]:
        """Answers that the frame may mean, and whose end this connection was not sent yet."""
        if frame.response_id is not None:
            return set()
        watched = [
            subscription
            for session_id, subscription in self._subscriptions.items()
            if frame.session_id in (None, session_id)
        ]
        return {response_id for s in watched if s.is_own for response_id in s.open}

    def _local_runs(self, frame: CancelResponse) -> list[Run]:
        """The user's answers on this worker that the frame means."""
        if frame.response_id is not None:
            run = self._runs.local(frame.response_id)
            runs = [] if run is None else [run]
        elif frame.session_id is not None:
            runs = self._runs.local_of_session(frame.session_id)
            if (key := frame.idempotency_key) is not None:
                runs = [run for run in runs if run.idempotency_key == key]
        elif frame.idempotency_key is not None:
            runs = []  # refused later: a key is one of a session
        else:
            watched = [s.session_id for s in self._subscriptions.values() if s.is_own]
            runs = [r for session_id in watched for r in self._runs.local_of_session(session_id)]
        return [run for run in runs if run.uid == self._uid and not run.done.is_set()]

    def _stop_local(self, run: Run, frame: CancelResponse) -> None:
        self._runs.stop(run, Stop("user", "client_cancelled", frame.seen_sequence_number))

    async def cancel(self, frame: CancelResponse, asked: int) -> None:
        """`response.cancel` and `stop`, as far as the reader has not carried them out already."""
        stop = self.waiting.pop(asked, WaitingStop(frame))
        # What was asked for just before the stop may have begun meanwhile.
        handled = self._close_gates(stop, asked)
        try:
            targets = await self._targets(frame)
        except StoreUnavailable:
            if handled:
                return  # what runs here is stopped, and the store will hear of it
            raise
        if not targets and not handled and frame.idempotency_key is None:
            if await self._drop_rounds(frame):
                self._connection.outbox.put(cancelling(None, durable=True), event_id=frame.event_id)
                return
            targets = await self._targets(frame)  # a round may have begun just now
            if not targets:
                raise ApiError("response_not_found", "nothing is running that could be stopped")
        frame = _without_seen(frame, handled.union(targets))
        for response_id in targets:
            if response_id not in handled:
                self._start(self._cancel_one(response_id, frame, asked))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.spawn(work)

    async def _targets(self, frame: CancelResponse) -> list[str]:
        if frame.response_id is not None:
            check_response_id(frame.response_id)
            return [frame.response_id]
        if frame.session_id is None:
            if frame.idempotency_key is not None:
                raise invalid_field("session_id", "idempotency_key needs a session_id")
            return [rid for session_id in self._watched for rid in await self._live(session_id)]
        check_session_id(frame.session_id)
        await self._store.sessions.get(self._uid, frame.session_id)
        if frame.idempotency_key is not None:
            return await self._cancel_early(frame)
        return await self._live(frame.session_id)

    async def _live(self, session_id: str) -> list[str]:
        """Active and queued answers, on whichever worker."""
        return (await self._store.responses.live(session_id)).ids

    async def _drop_rounds(self, frame: CancelResponse) -> bool:
        """Between an answer and the round after it nothing runs: whether one was to follow."""
        session_ids = [frame.session_id] if frame.session_id is not None else self._watched
        dropped = [await self._drop_round(session_id) for session_id in session_ids]
        return any(dropped)

    async def _drop_round(self, session_id: str, after: str | None = None) -> bool:
        """Have no round follow in that session; `after` that answer alone, if it is given."""
        with contextlib.suppress(SessionNotFound):
            following = (await self._store.queues.get(self._uid, session_id)).next_round
            if following is not None and after in (None, following.response_id):
                return await self._store.queues.drop_round(session_id, following, pauses=True)
        return False

    @property
    def _watched(self) -> list[str]:
        return [s.session_id for s in self._subscriptions.values() if s.is_own]

    async def _cancel_early(self, frame: CancelResponse) -> list[str]:
        """Stop by key: the response may not exist yet, then the wish waits for it."""
        assert frame.session_id is not None and frame.idempotency_key is not None
        known = await self._known_early(frame.session_id, frame.idempotency_key)
        if known is not None:
            return [known]
        self._connection.outbox.put(
            ResponseCancelling(
                response_id=None,
                idempotency_key=frame.idempotency_key,
                by="user",
                confirmed=False,
                durable=True,
            ),
            event_id=frame.event_id,
        )
        return []

    async def _known_early(self, session_id: str, idempotency_key: str) -> str | None:
        """The response of that key; None if there is none, and will be none: it was withdrawn."""
        cancel_early = self._store.responses.cancel_early
        known = await cancel_early(self._uid, session_id, idempotency_key)
        if known == QUEUED:
            item_id = derived_item_id(session_id, idempotency_key)
            try:
                await self._store.queues.remove(self._uid, session_id, item_id)
            except ItemNotFound:  # it has begun, or was withdrawn, at this very moment
                known = await cancel_early(self._uid, session_id, idempotency_key)
        return None if known in (QUEUED, REMOVED) else known

    async def _cancel_one(self, response_id: str, frame: CancelResponse, asked: int) -> None:
        is_first = response_id not in self._followed  # the others need not tell the end again
        self._followed.add(response_id)
        try:
            with translate_store_errors():
                run = self._runs.local(response_id)
                if run is not None and run.uid == self._uid:
                    await self._cancel_local(run, frame, asked, follow=is_first)
                    if run.status == "completed":  # the stop came too late for it alone
                        await self._drop_round(run.session_id, response_id)
                else:
                    await self._cancel_remote(response_id, frame, asked, follow=is_first)
        except ApiError as error:
            self._connection.put_error(error, frame.event_id)
        except Exception:
            logger.exception("stop failed", response_id=response_id)
            failure = ApiError("internal", "an internal error occurred")
            self._connection.put_error(failure, frame.event_id)
        finally:
            if is_first:
                self._followed.discard(response_id)
            if response_id not in self._followed:
                self._sent_ends.settle(response_id)

    async def _cancel_local(
        self, run: Run, frame: CancelResponse, asked: int, *, follow: bool
    ) -> None:
        self._stop_local(run, frame)
        response_id = run.response_id
        is_noticed = False

        def notice(durable: bool) -> None:
            nonlocal is_noticed
            if not is_noticed and not run.done.is_set():
                is_noticed = True
                self._connection.outbox.put(
                    cancelling(response_id, durable=durable), response_id, event_id=frame.event_id
                )

        if not run.done.is_set():
            # What waits to be shown until the lease is renewed would come after the notice.
            self._sent_ends.stop(
                response_id, lambda: run.final_text() if is_done(run.events[-1]) else None
            )
        timer = asyncio.get_running_loop().call_later(DURABLE_WAIT_SECONDS, notice, False)
        run.when_stop_is_stored(lambda: notice(True))
        await run.done.wait()
        timer.cancel()
        if not follow:
            return
        # Who watches is sent it by the subscription, at the latest when it is stored.
        watching = self._watching(response_id)
        is_brought = watching is not None and not watching.joining
        has_early_end = self._sent_ends.has_early_end(response_id)
        if not is_brought and not has_early_end and is_done(run.events[-1]):
            self._put_end(response_id, run.log, asked)
        await run.settled.wait()  # sent before it was stored, it may yet be another worker's
        if run.is_disowned:
            async with self._listening(response_id) as ear:
                ear.listen()
                await self._follow_to_the_end(response_id, asked)
        elif is_done(run.events[-1]):
            self._put_end(response_id, run.log, asked)

    async def _cancel_remote(
        self, response_id: str, frame: CancelResponse, asked: int, *, follow: bool
    ) -> None:
        async with self._listening(response_id) as ear:
            try:
                stored = await self._store.runs.request_cancel(
                    self._uid, response_id, seen=frame.seen_sequence_number
                )
            except RunEnded:
                await self._drop_round(session_of(response_id), response_id)
                if follow:
                    await self._tell_stored_end(response_id, asked)
                return
            self._sent_ends.stop(response_id)
            self._connection.outbox.put(
                cancelling(response_id, durable=True), response_id, event_id=frame.event_id
            )
            ear.listen()
            with contextlib.suppress(StoreUnavailable):  # its next append tells the owner as well
                stop = Stop("user", "client_cancelled", frame.seen_sequence_number)
                # The first stop counts; which one that was, only the store knows otherwise.
                known = StoredStop(stop, stored.cancel_at) if stored.first else None
                command = cancel_command(response_id, known)
                await self._store.publish_control(stored.owner, command)
            if follow:
                await self._follow_to_the_end(response_id, asked)

    @contextlib.asynccontextmanager
    async def _listening(self, response_id: str) -> AsyncIterator[Ear]:
        """Hear how the answer ends, by an ear of its own.

        A moment after its end its session may be deleted, and then nothing is stored of it. Another
        subscription may watch it too, and be replaced meanwhile.
        """
        ear = Ear(self._connection, response_id)
        with contextlib.suppress(SessionNotFound, StoreUnavailable):  # then the log must do
            await self._hub.join(ear)
        try:
            yield ear
        finally:
            self._hub.spawn(self._hub.leave(ear))

    async def _tell_stored_end(self, response_id: str, asked: int) -> None:
        """Losing a race is no error: what has ended already is answered with its end."""
        log = await until_done(
            partial(read_log, self._store, self._uid, response_id),
            lambda: not self._sent_ends.has_answered(response_id, asked),
        )
        if log is not None:
            self._put_end(response_id, log, asked)

    async def _follow_to_the_end(self, response_id: str, asked: int) -> None:
        """Another worker ends it: its asker hears of that, however long the store is away."""
        # What comes of it from now on would come after the notice.
        stopped = self._sent_ends.stop(response_id)

        def is_due() -> bool:
            return not self._sent_ends.has_answered(response_id, asked)

        async def follow() -> None:
            await self._await_remote_end(response_id, stopped.ended)
            await self._tell_stored_end(response_id, asked)

        try:
            while is_due():
                await until_done(follow, is_due)
        except ResponseNotFound:
            await self._await_deleted_end(response_id, stopped, asked)

    async def _await_deleted_end(self, response_id: str, stopped: Stopped, asked: int) -> None:
        """Nothing is stored of it any more: its owner tells those who watch."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DELETED_END_SECONDS):
                await stopped.ended.wait()
        if self._sent_ends.has_answered(response_id, asked):
            return
        # As an older worker publishes it: without the text.
        watching = self._watching(response_id)
        if watching is None or not watching.put_heard_end(response_id):
            raise ResponseNotFound

    async def _await_remote_end(self, response_id: str, ended: asyncio.Event) -> None:
        """Wait for the owner; if it is silent until its lease ends, end the answer in its place."""
        started = time.monotonic()
        is_announced = False
        waits = list(REMOTE_POLL_SECONDS)
        while (record := await self._store.runs.get(self._uid, response_id)).is_live:
            silent = time.monotonic() - started > SILENT_OWNER_SECONDS
            if silent and not is_announced:
                is_announced = True
                left = max(0, record.lease_until - await self._store.now_ms())
                notice = cancelling(response_id, durable=True)
                self._connection.outbox.put(
                    replace(notice, owner="silent", lease_ends_in_ms=left), response_id
                )
            if silent:
                await self._takeover.take_over(response_id)  # a no-op until the lease has ended
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(waits.pop(0) if waits else REMOTE_POLL_SECONDS[-1]):
                    await ended.wait()
            if ended.is_set():
                return

    def _watching(self, response_id: str) -> Subscription | None:
        """The subscription that brings the answer's events."""
        subscription = self._subscriptions.get(session_of(response_id))
        watches = subscription is not None and subscription.wants(response_id)
        return subscription if watches else None

    def _put_end(self, response_id: str, log: ResponseLog, asked: int) -> None:
        """Queue an answer's end, unless the stop that `asked` for it was answered with it.

        It brings the text where this connection lacks some of it.
        """
        if not log.has_ended:
            raise ResponseNotFound  # its keys have just gone
        if self._sent_ends.has_answered(response_id, asked):
            return
        if (subscription := self._watching(response_id)) is not None:
            subscription.put_end(response_id, log)
        else:
            outbox, number = self._connection.outbox, len(log.events)
            put_event(outbox, response_id, number, log.fence, log.end_with_text)
            self._sent_ends.note_end(response_id, is_final=is_final(log.end.data))


def _without_seen(frame: CancelResponse, meant: Collection[str]) -> CancelResponse:
    """What was seen of one answer says nothing about another."""
    return frame if len(meant) <= 1 else replace(frame, seen_sequence_number=None)


def cancelling(response_id: str | None, *, durable: bool) -> ResponseCancelling:
    return ResponseCancelling(response_id=response_id, by="user", confirmed=False, durable=durable)
