"""`LogWriter`: what is new of one answer, for the `Appender` to store, and the lease on it.

One append is on its way at a time, with all that came since the last; without events it renews the
lease. Its reply carries the wish to stop, its refusal says that the answer is lost.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import structlog

from server.config.intervals import STORE_RETRY_SECONDS, Intervals
from server.live.hub import Hub
from server.live.retries import until_done
from server.runs.run import Run
from sessions.model.codec import TOKEN_ID_BYTES, encode_token_ids
from sessions.model.errors import RunEnded, RunGone, RunLost, SequenceGap, StoreUnavailable
from sessions.model.events import ObjectEvent, encode_event
from sessions.model.replies import AppendReply
from sessions.store.appends.append import Append, field_arguments
from sessions.store.appends.appender import APPEND_SECONDS, Appender
from sessions.store.store import SessionStore

logger = structlog.get_logger("server")

LOSSES = (RunLost, RunEnded, RunGone, SequenceGap)


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
        appender: Appender,
        store: SessionStore,
        intervals: Intervals,
        hub: Hub,
        on_stop: Callable[[], Awaitable[None]] | None = None,
        on_loss: Callable[[Exception], None] | None = None,
    ) -> None:
        self._run = run
        self._log = store.appends.log_of(run.response_id)
        self._appender = appender
        self._store = store
        self._intervals = intervals
        self._hub = hub
        self._on_stop = on_stop
        self._on_loss = on_loss or partial(lose, run)
        self._lease_ms = int(intervals.lease * 1000)
        self._unanswered: Append | None = None  # maybe stored: it is sent again as it was
        self._on_its_way: Append | None = None  # the same, or a renewal
        self._sent = 0.0
        self._free: asyncio.Event | None = None  # of who waits until it is not busy
        self._has_spoken = False  # its first words are on their way, or stored
        self.is_noted = self.is_busy = False
        self.not_before = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write in the background; at the end of the block no append is on its way."""
        self._appender.add(self)
        self._run.on_change = partial(self._appender.note, self)
        self._note_rest()
        try:
            yield
        finally:
            self._run.on_change = _nothing
            self._appender.remove(self)
            if self.is_busy:  # it may still be applied, and what follows must begin after it
                self._free = asyncio.Event()
                await self._free.wait()

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
            append, sent = self._unanswered or self._next(), time.monotonic()
            self._note_stored(append, await self._store.appends.write(append), sent)
        reply = await self._store.appends.write(self._renewal(), lease_seconds=0.0)
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
        self._appender.note(self)
        # The log went back in time, to before what was shown: its viewers start over.
        logger.warning("redis lost its last writes, which are written again", **run.ids)
        self._hub.spawn(self._hub.data_loss.renew(run.session_id))
        return True

    def _lose(self, error: Exception) -> None:
        if not isinstance(error, SequenceGap) or not self.rewind(error):
            self._on_loss(error)

    # ---- what the appender sends -----------------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """The first words for a door: it can take nothing back, so it waits for the store."""
        run = self._run
        return run.is_brought and not self._has_spoken and run.has_spoken.is_set()

    def take(self, now: float) -> Append | None:
        """What is new, or was never answered, or a renewal; None if nothing is stored any more."""
        if not self._run.is_here:
            return None
        append = self._on_its_way = self._unanswered or self._next()
        self.is_busy = True
        self._has_spoken = self._has_spoken or self._run.has_spoken.is_set()
        self._sent = time.monotonic()
        self.not_before = now + APPEND_SECONDS
        append.answered = self._take_outcome
        return append

    def _next(self) -> Append:
        run = self._run
        events = run.events[run.num_stored :]
        if not events:
            return self._renewal()
        starts = False
        entries = []
        for event in events:
            entries.append(encode_event(event))
            starts = starts or isinstance(event, ObjectEvent)
        append = self._unanswered = self._renewal()
        append.entries = entries
        append.token_ids = encode_token_ids(run.token_ids[run.num_tokens_stored :])
        append.text_length = run.text_length
        if starts:
            append.status = "in_progress"
            append.fields = field_arguments({}, self._fields())
        return append

    def _renewal(self) -> Append:
        return Append(self._log, self._run.fence, self._run.num_stored + 1)

    def _fields(self) -> dict[str, str | int]:
        """What another owner must know to build the same prompt, and to see that it did."""
        run = self._run
        if run.prompt is None:
            return {}
        fields: dict[str, str | int] = {"prompt_hash": run.prompt.hash}
        if run.model is not None and run.model.fingerprint:
            fields["model_fingerprint"] = run.model.fingerprint
        if run.prompt_from is not None:
            fields["prompt_from"] = run.prompt_from
        return fields

    # ---- what became of it -----------------------------------------------------------------------

    def _take_outcome(self, outcome: AppendReply | Exception) -> None:
        """A reply, a refusal or an outage. The next one may go, unless a stop must be heeded."""
        append, run = self._on_its_way, self._run
        assert append is not None
        self.is_busy = False
        try:
            if isinstance(outcome, AppendReply):
                self._note_stored(append, outcome, self._sent)
                if outcome.cancel and run.stopping is None and self._on_stop is not None:
                    self.is_busy = True
                    self._hub.spawn(self._heed_stop(self._on_stop))
                elif run.num_stored < len(run.events):  # more came while it was on its way
                    self._appender.note(self)
            else:
                self._take_failure(outcome)
        finally:
            if self._free is not None and not self.is_busy:
                self._free.set()

    def _take_failure(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self.not_before = asyncio.get_running_loop().time() + STORE_RETRY_SECONDS
            self._appender.note(self)
        elif isinstance(error, LOSSES):
            self._lose(error)
        else:  # it can only end now
            self._appender.remove(self)
            logger.error("append failed", exc_info=error, **self._run.ids)

    async def _heed_stop(self, on_stop: Callable[[], Awaitable[None]]) -> None:
        try:
            await on_stop()
        finally:
            self.is_busy = False
            if self._free is not None:
                self._free.set()
            self._note_rest()

    def _note_rest(self) -> None:
        """There may be something new that the appender does not know of."""
        if self._run.num_stored < len(self._run.events):
            self._appender.note(self)

    def _note_stored(self, append: Append, reply: AppendReply, sent: float) -> None:
        run = self._run
        if append.entries:
            if run.trace is not None:
                run.trace.wrote(sent, len(append.entries))
            self._settle(append)
        run.lease_until = reply.lease_until
        if not reply.repeated:  # a repeat says that the first try had renewed, whenever that was
            run.renewed_at = sent
            run.timeline.set_clock(reply.lease_until - self._lease_ms)
            self._hub.show_held(run)

    def _settle(self, append: Append) -> None:
        """The append is stored."""
        self._unanswered = None
        self._run.num_stored = append.last
        self._run.num_tokens_stored += len(append.token_ids) // TOKEN_ID_BYTES
        self._run.tell_stored()


def lose(run: Run, error: Exception) -> None:
    """The store refuses this worker's writes: it must not show another character."""
    if not run.is_deleted:
        logger.warning("run lost", error=type(error).__name__, **run.ids)
    run.lose()


def _nothing() -> None:
    """Of an answer that nobody writes any more."""
