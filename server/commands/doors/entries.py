"""`StoredEntries`: the entries of one answer's log as they are stored, on any worker.

What a viewer of `chat.v1` is shown may have to be taken back when a worker dies; who can take
nothing back reads here. Where the answer is this worker's, entries come from its memory, as soon as
the store has them: straight to who reads, in the call that hears of it, while nothing waits there.
Elsewhere they are read from the log, whenever its owner has published more.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from server.commands.doors.straight import Straight, closed
from server.commands.services import Services
from server.live.outbox import Outbox
from server.live.response_log import ResponseLog, is_done
from server.live.sent_ends import SentEnds
from server.live.subscription import Subscription
from server.runs.run import Run
from server.runs.state import RunState
from sessions.model.errors import SessionNotFound, StoreUnavailable
from sessions.model.events import Event
from sessions.model.ids import session_of

POLL_SECONDS = 1.0  # what was not heard is seen then
AWAY_SECONDS = 0.2  # while the store is away


class StoredEntries:
    """`batches` are read once; `close` afterwards."""

    def __init__(
        self,
        services: Services,
        uid: str,
        response_id: str,
        straight: Straight[Event] | None = None,
    ) -> None:
        self._services = services
        self._store = services.store
        self._uid = uid
        self._id = response_id
        self._num_read = 0
        self._listener: _Listener | None = None
        self._straight = straight or closed()

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """All entries that do not go straight, some at a time and now and then none, until the end
        of the answer.

        It stops without an end if the log is gone. Raises `ResponseNotFound`.
        """
        while True:
            run = self._services.runs.local(self._id)
            is_here = run is not None and run.uid == self._uid and not run.is_elsewhere
            events = self._take(run) if run is not None and is_here else await self._read()
            if events is None:
                return
            if events:
                self._num_read += len(events)
                yield events
                if is_done(events[-1]):
                    return
            elif run is not None and is_here:
                if not await self._has_more(run):
                    yield ()
            elif self._listener is not None and not await _is_set(self._listener.has_heard):
                yield ()

    async def close(self) -> None:
        """No-op if nothing was listened to."""
        if self._listener is not None:
            await self._services.hub.leave(self._listener)

    def _take(self, run: Run) -> Sequence[Event]:
        """What the store has of an answer of this worker, and was not read yet."""
        is_settled = run.settled.is_set() and run.state is RunState.ENDED
        until = len(run.events) if is_settled else run.num_stored
        if run.settled.is_set() and not is_settled:
            return ()
        return run.events[self._num_read : until]

    async def _has_more(self, run: Run) -> bool:
        """Whether there soon is something of it that does not go straight."""
        more: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hear() -> None:
            try:
                if not more.done() and not self._go_straight(run):
                    more.set_result(None)
            except Exception as error:  # it is this reader's, and none of the answer's
                more.set_exception(error)

        with run.telling(hear):
            await asyncio.wait([more], timeout=POLL_SECONDS)
        if not more.done():
            return False
        more.result()  # raises what was wrong
        return True

    def _go_straight(self, run: Run) -> bool:
        """Hand on what is new at once, if that can be; the end is for who waits."""
        if run.is_elsewhere or not self._straight.is_open():
            return False
        events = self._take(run)
        if not events or is_done(events[-1]):
            return False
        self._num_read += len(events)
        self._straight.put(events)
        return True

    async def _read(self) -> Sequence[Event] | None:
        """The same of one of another worker, or of one that has ended; None if the log is gone."""
        if self._listener is not None:
            self._listener.has_heard.clear()
        try:
            record = await self._store.runs.get(self._uid, self._id)
            found = await self._store.runs.events(self._id, after=self._num_read)
        except StoreUnavailable:
            await asyncio.sleep(AWAY_SECONDS)
            return ()
        events = [event for number, event in found if number > self._num_read]
        if events:
            return events
        if not record.is_live:
            return None
        if self._listener is None:
            listener = _Listener(self._uid, self._id)
            with contextlib.suppress(SessionNotFound, StoreUnavailable):
                await self._services.hub.join(listener)
                listener.end_join(0)
                self._listener = listener
                listener.has_heard.set()  # something may have come before
        return ()


class _Listener(Subscription):
    """Hears that there is more; what, the log says."""

    def __init__(self, uid: str, response_id: str) -> None:
        super().__init__(_Nobody(uid), session_of(response_id), only={response_id}, is_viewer=False)
        self.has_heard = asyncio.Event()

    def put_events(
        self,
        response_id: str,
        fence: int,
        first: int,
        events: Sequence[Event],
        frame: bytes | None = None,
    ) -> bool:
        self.has_heard.set()
        return True

    def catch_up(self, response_id: str, log: ResponseLog) -> None:
        self.has_heard.set()

    def put_log(self, *_: Any, **__: Any) -> None:
        self.has_heard.set()

    def put_end_again(self, *_: Any, **__: Any) -> None:
        self.has_heard.set()


class _Nobody:
    """In the place of a connection: nothing is sent."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.outbox = Outbox(lambda: None)
        self.sent_ends = SentEnds()

    def evict(self, reason: str) -> None:
        """There is nothing to leave."""


async def _is_set(event: asyncio.Event) -> bool:
    """Whether that comes soon."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_SECONDS):
            await event.wait()
    return event.is_set()
