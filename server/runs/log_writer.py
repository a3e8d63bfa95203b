"""`LogWriter`: stores what is new of one answer, and keeps the lease on it.

One append is in flight at a time, with all that came since the last; without events a renewal goes
out instead. Its reply carries the wish to stop, its refusal says that the answer is lost.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from server.config.intervals import STORE_RETRY_SECONDS, Intervals
from server.live.hub import Hub
from server.live.retries import until_done
from server.runs.run import Run
from sessions.background import start
from sessions.model.errors import RunEnded, RunGone, RunLost, SequenceGap, StoreUnavailable
from sessions.model.events import Event, ObjectEvent
from sessions.model.replies import AppendReply
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

APPEND_SECONDS = 0.03  # between two appends of one answer: what comes meanwhile shares a call
APPEND_DELAY_SECONDS = 0.005  # from an event to its append: the sockets here come first
LOSSES = (RunLost, RunEnded, RunGone, SequenceGap)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one append stores. Without a reply it is sent again as it was: it may be stored."""

    first: int
    events: list[Event]
    token_ids: list[int]
    text_length: int

    @property
    def last(self) -> int:
        return self.first - 1 + len(self.events)


class LogWriter:
    """Writes while `running`; where only an end is to be written, it knows where the log ends.

    The `hub` shows what waited for a renewal, and hears what Redis had lost.
    `on_stop`: a stop is stored; `on_loss`: nothing more may be said. Who has left the engine, or
    never asked it, needs neither.
    """

    def __init__(
        self,
        run: Run,
        *,
        store: SessionStore,
        intervals: Intervals,
        hub: Hub,
        on_stop: Callable[[], Awaitable[None]] | None = None,
        on_loss: Callable[[Exception], None] | None = None,
    ) -> None:
        self._run = run
        self._store = store
        self._intervals = intervals
        self._hub = hub
        self._on_stop = on_stop
        self._on_loss = on_loss or partial(lose, run)
        self._unanswered: Batch | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write in the background; at the end of the block no append is on its way."""
        writing = start(self._write_forever())
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def hand_over(self) -> None:
        """Store what there is and give up the lease, so that the next owner goes on at once."""
        run = self._run
        while run.is_here:
            try:
                await until_done(self._give_up_lease, lambda: run.is_here)
                return
            except LOSSES as error:
                self._lose(error)

    async def _give_up_lease(self) -> None:
        run = self._run
        # An empty append may be repeated; one with events would renew the lease again.
        while self._unanswered is not None or run.num_stored < run.sequence_number:
            await self._append()
        reply = await self._renew(0.0)
        await self._store.runs.touch({run.response_id: reply.lease_until})

    def settle_at(self, sequence_number: int) -> bool:
        """The log ends there: whether that is with an append that had no reply."""
        if self._unanswered is None or sequence_number != self._unanswered.last:
            return False
        self._settle(self._unanswered)
        return True

    def rewind(self, gap: SequenceGap) -> bool:
        """Assume that what follows the gap is not stored any more; False if it never was."""
        run = self._run
        if gap.sequence_number >= run.num_stored:
            return False
        self._unanswered = None
        run.num_stored = gap.sequence_number
        run.num_tokens_stored = gap.num_tokens
        run.changed.set()
        # The log went back in time, to before what was shown: its viewers begin anew.
        logger.warning("redis lost its last writes, which are written again", **run.ids)
        self._hub.spawn(self._hub.data_loss.renew(run.session_id))
        return True

    def _lose(self, error: Exception) -> None:
        if not isinstance(error, SequenceGap) or not self.rewind(error):
            self._on_loss(error)

    async def _write_forever(self) -> None:
        run = self._run
        now = asyncio.get_running_loop().time
        next_append = 0.0
        while run.is_here:
            await self._changed()
            await asyncio.sleep(max(APPEND_DELAY_SECONDS, next_append - now()))
            run.changed.clear()
            append = start(self._append())
            try:
                await asyncio.shield(append)
            except asyncio.CancelledError:
                # It may still be applied, and what follows must begin after it.
                await asyncio.gather(append, return_exceptions=True)
                raise
            except StoreUnavailable:  # not `until_done`: the next append has what came meanwhile
                run.changed.set()
                await asyncio.sleep(STORE_RETRY_SECONDS)
            except LOSSES as error:
                self._lose(error)
            else:
                next_append = now() + APPEND_SECONDS

    async def _changed(self) -> None:
        """Return when there is something to append, or the lease wants to be renewed."""
        changed = self._run.changed
        renewal = asyncio.get_running_loop().call_later(self._intervals.renewal, changed.set)
        try:
            await changed.wait()
        finally:
            renewal.cancel()

    async def _append(self) -> None:
        run = self._run
        batch = self._unanswered or Batch(
            run.num_stored + 1,
            run.events[run.num_stored :],
            run.token_ids[run.num_tokens_stored :],
            run.text_length,
        )
        if not batch.events:
            await self._renew()
            return
        self._unanswered = batch
        starts = any(isinstance(event, ObjectEvent) for event in batch.events)
        sent = time.monotonic()
        reply = await self._store.runs.append(
            run.response_id,
            fence=run.fence,
            first=batch.first,
            events=batch.events,
            token_ids=batch.token_ids,
            text_length=batch.text_length,
            status="in_progress" if starts else None,
            fields=self._fields() if starts else {},
        )
        if run.trace is not None:
            run.trace.wrote(sent, len(batch.events))
        self._settle(batch)
        await self._take(reply, sent)

    async def _renew(self, lease_seconds: float | None = None) -> AppendReply:
        run = self._run
        sent = time.monotonic()
        reply = await self._store.runs.append(
            run.response_id,
            fence=run.fence,
            first=run.num_stored + 1,
            events=(),
            lease_seconds=lease_seconds,
        )
        if lease_seconds is None:
            await self._take(reply, sent)
        return reply

    def _fields(self) -> dict[str, str | int]:
        """What another owner must know to build the same prompt, and to see that it did."""
        run = self._run
        if run.prompt is None:
            return {}
        fields: dict[str, str | int] = {"prompt_hash": run.prompt.hash}
        if run.model is not None:
            fields["model_fingerprint"] = run.model.fingerprint
        if run.prompt_from is not None:
            fields["prompt_from"] = run.prompt_from
        return fields

    async def _take(self, reply: AppendReply, sent: float) -> None:
        run = self._run
        run.lease_until = reply.lease_until
        if not reply.repeated:  # a repeat says that the first try had renewed, whenever that was
            run.renewed_at = sent
            run.timeline.set_clock(self._replied_at(reply))
            self._hub.show_held(run)
        if reply.cancel and run.stopping is None and self._on_stop is not None:
            await self._on_stop()

    def _replied_at(self, reply: AppendReply) -> int:
        """Redis' clock when it replied, milliseconds since 1970."""
        return reply.lease_until - int(self._intervals.lease * 1000)

    def _settle(self, batch: Batch) -> None:
        """The batch is stored."""
        run = self._run
        self._unanswered = None
        run.num_stored = batch.last
        run.num_tokens_stored += len(batch.token_ids)
        if run.num_stored < run.sequence_number:  # more came while it was unanswered
            run.changed.set()


def lose(run: Run, error: Exception) -> None:
    """The store refuses this worker's writes: it must not show another character."""
    if not run.is_deleted:
        logger.warning("run lost", error=type(error).__name__, **run.ids)
    run.lose()
