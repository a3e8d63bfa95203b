"""Stop: which answers a frame means, and what its sender is told until they have ended."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from engine.errors import EngineError
from server.errors import ApiError, invalid_field
from server.frames import is_final, put_event
from server.outbox import Outbox
from server.protocol import CancelResponse
from server.response_log import ResponseLog, is_done, read_log
from server.run import Run, Stop, StoredStop, cancel_command
from server.services import Services
from server.subscription import Subscription
from server.translate import check_response_id, check_session_id, translate_store_errors
from sessions.background import Background
from sessions.errors import ResponseNotFound, RunEnded, StoreUnavailable
from sessions.ids import session_of

logger = structlog.get_logger("server")

DURABLE_WAIT_SECONDS = 0.05  # before `response.cancelling` goes out as `durable: false`
REMOTE_POLL_SECONDS = (0.02, 0.05, 0.1)  # then every 0.1 s
SILENT_OWNER_SECONDS = 2.0
STORE_RETRY_SECONDS = 0.2
DELETED_END_SECONDS = 2.0  # for the owner of a deleted answer to tell its end


class Asker(Protocol):
    """Who asks for stops: a connection, or one HTTP request."""

    uid: str
    outbox: Outbox

    def put_error(self, error: ApiError, event_id: str | None) -> None: ...


class Stops:
    """The stops of one connection; `subscriptions` are those of its handlers."""

    def __init__(
        self,
        connection: Asker,
        services: Services,
        subscriptions: Mapping[str, Subscription],
    ) -> None:
        self._connection = connection
        self._store = services.store
        self._hub = services.hub
        self._runs = services.runs
        self._takeover = services.takeover
        self._subscriptions = subscriptions
        self._background = Background(ApiError, EngineError)
        self._followed: set[str] = set()  # answers whose end this connection is waiting for
        self._waiting: list[CancelResponse] = []  # read, and queued behind earlier frames
        self._handled: dict[int, set[str]] = {}  # id of such a frame → what the reader stopped

    @property
    def _uid(self) -> str:
        return self._connection.uid

    def close(self) -> None:
        """The connection is gone: nobody is told any more. What was stopped stays stopped."""
        self._background.cancel()

    def close_gates(self, frame: CancelResponse) -> None:
        """Called by the reader, before anything is awaited: stop what this worker produces.

        So these stops wait neither for earlier frames nor for the store.
        """
        self._handled[id(frame)] = self._close_gates(frame, set())
        self._waiting.append(frame)

    def carry_out_waiting(self, response_id: str) -> None:
        """An answer has just begun: the stops that were read meanwhile close its gate.

        Called before the event loop has looked at a socket again, so not even the first token
        slips out; the stops are answered when their turn comes.
        """
        run = self._runs.local(response_id)
        for stop in self._waiting if run is not None else ():
            if run in self._local_runs(stop):
                self._stop_local(run, replace(stop, seen_sequence_number=None))

    def _close_gates(self, frame: CancelResponse, handled: set[str]) -> set[str]:
        """Stop what this worker produces, besides what was `handled`; all of it together."""
        runs = [run for run in self._local_runs(frame) if run.response_id not in handled]
        handled = handled.union(run.response_id for run in runs)
        frame = _without_seen(frame, handled | self._shown(frame))
        for run in runs:
            self._stop_local(run, frame)
            self._start(self._cancel_one(run.response_id, frame))
        return handled

    def _shown(self, frame: CancelResponse) -> set[str]:
        """Answers that the frame may mean, and whose end this connection was not sent yet."""
        if frame.response_id is not None:
            return set()
        sessions = (frame.session_id,) if frame.session_id else self._subscriptions.keys()
        watched = [self._subscriptions[id] for id in sessions if id in self._subscriptions]
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

    async def cancel(self, frame: CancelResponse) -> None:
        """`response.cancel` and `stop`, as far as the reader has not carried them out already."""
        # What was asked for just before the stop may have begun meanwhile.
        handled = self._close_gates(frame, self._handled.pop(id(frame), set()))
        self._waiting = [waiting for waiting in self._waiting if waiting is not frame]
        try:
            targets = await self._targets(frame)
        except StoreUnavailable:
            if handled:
                return  # what runs here is stopped, and the store will be told
            raise
        if not targets and not handled and frame.idempotency_key is None:
            raise ApiError("response_not_found", "nothing is running that could be stopped")
        frame = _without_seen(frame, handled.union(targets))
        for response_id in targets:
            if response_id not in handled:
                self._start(self._cancel_one(response_id, frame))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.spawn(work)

    async def _targets(self, frame: CancelResponse) -> list[str]:
        if frame.response_id is not None:
            check_response_id(frame.response_id)
            return [frame.response_id]
        if frame.session_id is None:
            if frame.idempotency_key is not None:
                raise invalid_field("session_id", "idempotency_key needs a session_id")
            watched = [s.session_id for s in self._subscriptions.values() if s.is_own]
            return [rid for session_id in watched for rid in await self._live(session_id)]
        check_session_id(frame.session_id)
        await self._store.session(self._uid, frame.session_id)
        if frame.idempotency_key is not None:
            return await self._cancel_early(frame)
        return await self._live(frame.session_id)

    async def _live(self, session_id: str) -> list[str]:
        """Active and queued answers, on whichever worker."""
        live = await self._store.live_responses(session_id)
        return [rid for rid in (live.active, *live.queued) if rid is not None]

    async def _cancel_early(self, frame: CancelResponse) -> list[str]:
        """Stop by key: the response may not exist yet, then the wish waits for it."""
        assert frame.session_id is not None and frame.idempotency_key is not None
        known = await self._store.cancel_early(self._uid, frame.session_id, frame.idempotency_key)
        if known is not None:
            return [known]
        self._reply(
            {
                "type": "response.cancelling",
                "response_id": None,
                "idempotency_key": frame.idempotency_key,
                "by": "user",
                "confirmed": False,
                "durable": True,
            },
            frame.event_id,
        )
        return []

    async def _cancel_one(self, response_id: str, frame: CancelResponse) -> None:
        is_first = response_id not in self._followed  # the others need not tell the end again
        self._followed.add(response_id)
        try:
            with translate_store_errors():
                run = self._runs.local(response_id)
                if run is not None and run.uid == self._uid:
                    await self._cancel_local(run, frame, follow=is_first)
                else:
                    await self._cancel_remote(response_id, frame, follow=is_first)
        except ApiError as error:
            self._connection.put_error(error, frame.event_id)
        except Exception:
            logger.exception("stop failed", response_id=response_id)
            failure = ApiError("internal", "an internal error occurred")
            self._connection.put_error(failure, frame.event_id)
        finally:
            if is_first:
                self._followed.discard(response_id)

    def freeze_in(self, subscription: Subscription) -> None:
        """A new subscription: of what was stopped before, it shows the end alone."""
        for response_id in self._followed:
            if session_of(response_id) == subscription.session_id:
                subscription.freeze(response_id)

    async def _cancel_local(self, run: Run, frame: CancelResponse, *, follow: bool) -> None:
        self._stop_local(run, frame)
        told = False

        def tell(durable: bool) -> None:
            nonlocal told
            if not told and not run.done.is_set():
                told = True
                notice = cancelling(run.response_id, durable=durable)
                self._reply(notice, frame.event_id, run.response_id)

        has_ended = run.done.is_set()
        subscription = self._watching(run.response_id)
        if subscription is not None and not has_ended:
            # What waits to be shown until the lease is renewed would come behind the notice.
            subscription.freeze(
                run.response_id, lambda: run.final_text() if is_done(run.events[-1]) else None
            )
        timer = asyncio.get_running_loop().call_later(DURABLE_WAIT_SECONDS, tell, False)
        run.when_stop_is_stored(lambda: tell(True))
        await run.done.wait()
        timer.cancel()
        if not follow:
            return
        # Its subscription has told it, unless another one took its place.
        present = self._watching(run.response_id)
        is_told = subscription is not None and present in (subscription, None)
        lacks_final = False
        if (has_ended or not is_told) and is_done(run.events[-1]):
            self._put_end(run.response_id, run.log)
            # A subscription hears by itself how that end is stored.
            lacks_final = present is None and not is_final(run.log.end.data)
        await run.settled.wait()  # told before it was stored, it may yet be another worker's
        if run.is_disowned:
            await self._follow_to_the_end(run.response_id)
        elif lacks_final:
            self._put_end(run.response_id, run.log)

    async def _cancel_remote(
        self, response_id: str, frame: CancelResponse, *, follow: bool
    ) -> None:
        try:
            asked = await self._store.request_cancel(
                self._uid, response_id, seen=frame.seen_sequence_number
            )
        except RunEnded:
            if follow:
                await self._follow_to_the_end(response_id)
            return
        if (subscription := self._watching(response_id)) is not None:
            subscription.freeze(response_id)
        self._reply(cancelling(response_id, durable=True), frame.event_id, response_id)
        with contextlib.suppress(StoreUnavailable):  # its next append tells the owner as well
            stop = Stop("user", "client_cancelled", frame.seen_sequence_number)
            # The first stop counts; which one that was, only the store knows otherwise.
            stored = StoredStop(stop, asked.cancel_at) if asked.first else None
            await self._store.publish_control(asked.owner, cancel_command(response_id, stored))
        if follow:
            await self._follow_to_the_end(response_id)

    async def _follow_to_the_end(self, response_id: str) -> None:
        """Another worker ends it: its asker hears of that, however long the store is away.

        Losing a race is no error: what has ended already is answered with its end.
        """
        subscription = self._watching(response_id)
        # What comes of it from now on would come behind the notice, or behind the end.
        ended = asyncio.Event() if subscription is None else subscription.freeze(response_id)
        while True:
            try:
                await self._await_remote_end(response_id, ended)
                self._put_end(response_id, await read_log(self._store, self._uid, response_id))
                return
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)
            except ResponseNotFound:
                # Deleted meanwhile: its owner tells those who watch, and nothing is stored.
                watching = self._watching(response_id)
                if watching is None or not await watching.put_heard_end(
                    response_id, DELETED_END_SECONDS
                ):
                    raise
                return

    async def _await_remote_end(self, response_id: str, ended: asyncio.Event) -> None:
        """Wait for the owner; if it is silent until its lease ends, end the answer in its place."""
        started = time.monotonic()
        told = False
        waits = list(REMOTE_POLL_SECONDS)
        while (record := await self._store.run(self._uid, response_id)).is_live:
            silent = time.monotonic() - started > SILENT_OWNER_SECONDS
            if silent and not told:
                told = True
                left = max(0, record.lease_until - await self._store.now_ms())
                notice = cancelling(response_id, durable=True)
                self._reply(
                    {**notice, "owner": "silent", "lease_ends_in_ms": left}, None, response_id
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

    def _put_end(self, response_id: str, log: ResponseLog) -> None:
        """Queue an answer's end. It brings the text where this connection lacks some of it."""
        if not log.has_ended:
            raise ResponseNotFound  # its keys have just gone
        if (subscription := self._watching(response_id)) is not None:
            subscription.put_end(response_id, log)
        else:
            outbox, number = self._connection.outbox, len(log.events)
            put_event(outbox, response_id, number, log.fence, log.end_with_text)

    def _reply(
        self, frame: dict[str, Any], event_id: str | None, response_id: str | None = None
    ) -> None:
        if event_id is not None:
            frame = {**frame, "event_id": event_id}
        self._connection.outbox.put(frame, response_id)


def _without_seen(frame: CancelResponse, meant: Collection[str]) -> CancelResponse:
    """What was seen of one answer says nothing about another."""
    return frame if len(meant) <= 1 else replace(frame, seen_sequence_number=None)


def cancelling(response_id: str, *, durable: bool) -> dict[str, Any]:
    return {
        "type": "response.cancelling",
        "response_id": response_id,
        "by": "user",
        "confirmed": False,
        "durable": durable,
    }
