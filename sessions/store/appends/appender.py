"""`Appender`: what is new of all answers of this worker goes to the store at once, by the tick.

A burst of the engine gives each answer something new within milliseconds. The first one arms the
tick, the others only say that they have something; then all of it travels in one script call, and
each answer hears on its own what became of its part. The leases of answers that say nothing are
renewed by the same calls. No task, future or timer belongs to one answer.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Protocol

from sessions.store.appends.append import Append, Appends, Listener

logger = logging.getLogger("parley.sessions")

APPEND_SECONDS = 0.03  # between two appends of one answer: what comes meanwhile shares a call
APPEND_DELAY_SECONDS = 0.005  # from an event to its append: the sockets here come first
# Between two ticks, for answers that take no turns: nobody waits longer than twice the delay.
TICK_SECONDS = 2 * APPEND_DELAY_SECONDS


class Writer(Protocol):
    """One answer that has something to append now and then."""

    is_noted: bool  # it has something new: the appender's note
    is_busy: bool  # its last append is on its way, or being heeded
    not_before: float  # of the loop's clock: its next append

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits who hears of it only when it is stored."""

    def take(self, now: float) -> Append | None:
        """What is new of it, or a renewal: from now on it is busy. None if it writes no more."""


class Appender:
    """The writers of one worker, and its one timer.

    `listener` is where the worker hears what others publish: what nobody else hears is not sent
    there.
    """

    def __init__(
        self,
        appends: Appends,
        *,
        renewal_seconds: float,
        listener: Listener | None = None,
    ) -> None:
        self._appends = appends
        self._renewal_seconds = renewal_seconds
        self._listener = listener
        self._renewals = OrderedDict[Writer, float]()  # when each is due, the soonest first
        self._changed: list[Writer] = []  # those that are noted, in the order of their events
        self._comes_soon = False  # a tick, which takes all that are noted meanwhile
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._last_tick = float("-inf")

    def add(self, writer: Writer) -> None:
        """From now on its lease is renewed."""
        due = asyncio.get_running_loop().time() + self._renewal_seconds
        self._renewals[writer] = due
        self._arm(due)

    def remove(self, writer: Writer) -> None:
        """Send nothing more of it. An append on its way is still answered."""
        self._renewals.pop(writer, None)
        if writer.is_noted:
            writer.is_noted = False
            self._changed.remove(writer)
        if not self._renewals and self._timer is not None:
            self._timer.cancel()
            self._timer, self._comes_soon = None, False

    def note(self, writer: Writer) -> None:
        """There is something new of a writer that was added: called for each event of it."""
        is_noted, is_urgent = writer.is_noted, writer.is_urgent
        if (is_noted and not is_urgent) or writer not in self._renewals:
            return
        if not is_noted:
            writer.is_noted = True
            self._changed.append(writer)
        if is_urgent:
            self._comes_soon = True
            self._set_timer(asyncio.get_running_loop().time())
        elif not self._comes_soon:
            soon = asyncio.get_running_loop().time() + APPEND_DELAY_SECONDS
            self._comes_soon = writer.not_before <= soon
            self._arm(max(soon, writer.not_before))

    # ---- the tick --------------------------------------------------------------------------------

    def _arm(self, at: float) -> None:
        """See to it that a tick comes then, or before, but not right after the last one."""
        self._set_timer(max(at, self._last_tick + TICK_SECONDS))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._tick)
        self._timer_at = at

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self._timer, self._comes_soon, self._last_tick = None, False, now
        appends = []
        for writer in self._due(now):
            try:
                append = writer.take(now)
            except Exception:  # what is wrong with one answer keeps no other one waiting
                logger.exception("answer cannot be appended to")
                self.remove(writer)
            else:
                if append is not None:
                    appends.append(append)
        if appends:
            self._appends.send(appends, listener=self._listener)
        self._arm_next()

    def _due(self, now: float) -> list[Writer]:
        """Who is to be written now. Who is busy says so again when it is not."""
        changed, self._changed = self._changed, []
        due: list[Writer] = []
        for writer in changed:
            # A little early, rather than in a call of its own before the next tick.
            if writer.not_before > now + APPEND_DELAY_SECONDS and not writer.is_urgent:
                self._changed.append(writer)
                continue
            writer.is_noted = False
            if not writer.is_busy:
                due.append(writer)
                self._put_off_renewal(writer, now)
        while self._renewals:
            writer, at = next(iter(self._renewals.items()))
            if at > now:
                break
            self._put_off_renewal(writer, now)
            if not writer.is_busy and not writer.is_noted:
                due.append(writer)
        return due

    def _put_off_renewal(self, writer: Writer, now: float) -> None:
        self._renewals[writer] = now + self._renewal_seconds
        self._renewals.move_to_end(writer)

    def _arm_next(self) -> None:
        if self._changed:
            self._arm(min(writer.not_before for writer in self._changed))
        if self._renewals:
            self._arm(next(iter(self._renewals.values())))
