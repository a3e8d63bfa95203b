"""`SentEnds`: which answers one connection has stopped, and which ends it was sent.

After either it gets no more text of that answer, even if it asks for it: only the end, which brings
the text. All code that queues something on the connection asks here, at the moment of queueing, so
the rule holds in any order of events.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sessions.model.events import ObjectEvent
from sessions.model.ids import session_of

MAX_ENDS = 256  # remembered; of older answers a connection may be sent the text once more
MAX_GONE = 64  # sessions


@dataclass(slots=True)
class Stopped:
    """An answer that this connection has stopped, until its last end was sent."""

    text: Callable[[], str | None]  # what the message says at its end; None: not known here
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    has_skipped: bool = False  # text was left out
    end: tuple[int, int, ObjectEvent] | None = None  # number, fence, event: as it came by


class _End(NamedTuple):
    """An end that was sent, or that nobody who follows a stop will send any more."""

    # Requests that had been read by then: all of these are answered by it. None: it was not sent,
    # and answers none.
    num_asked: int | None
    is_final: bool  # no other one follows


class SentEnds:
    """One per connection, shared by all its subscriptions and its stops."""

    __slots__ = ("_ends", "_gone", "_num_asked", "_stopped")

    def __init__(self) -> None:
        self._num_asked = 0  # requests that were read
        self._stopped: dict[str, Stopped] = {}
        self._ends: dict[str, _End] = {}  # by response id, the oldest first
        self._gone: dict[str, None] = {}  # sessions, likewise

    def ask(self) -> int:
        """A request was read: its number, which `has_answered` wants to know."""
        self._num_asked += 1
        return self._num_asked

    # ---- what it has stopped --------------------------------------------------------------------

    def stop(self, response_id: str, text: Callable[[], str | None] = lambda: None) -> Stopped:
        """From now on it gets no more text of that answer.

        `text` gives what the message says at its end. Where it cannot, the caller sends the end
        itself, with the text, and calls `settle` when it has nothing more to wait for.
        """
        stopped = self._stopped.setdefault(response_id, Stopped(text))
        stopped.text = text
        return stopped

    def stopped(self, response_id: str) -> Stopped | None:
        """The stop that is being carried out."""
        return self._stopped.get(response_id)

    def settle(self, response_id: str) -> None:
        """Nobody follows a stop any more: if no last end was sent, all who ask are sent it."""
        if self._stopped.pop(response_id, None) is not None and not self.has_end(response_id):
            self._remember(response_id, _End(None, is_final=True))

    def is_silent(self, response_id: str) -> bool:
        """Whether it gets nothing of that answer but the end."""
        return response_id in self._stopped or self.has_end(response_id)

    def knows(self, response_id: str) -> bool:
        """Whether anything here changes what it is sent of that answer."""
        return response_id in self._stopped or response_id in self._ends

    # ---- the ends that it was sent --------------------------------------------------------------

    def note_end(self, response_id: str, *, is_final: bool) -> None:
        """An end was queued."""
        self._remember(response_id, _End(self._num_asked, is_final))
        stopped = self._stopped.get(response_id)
        if stopped is not None:
            stopped.ended.set()
            if is_final:
                del self._stopped[response_id]

    def _remember(self, response_id: str, end: _End) -> None:
        self._ends.pop(response_id, None)
        self._ends[response_id] = end
        if len(self._ends) > MAX_ENDS:
            # Those that another one follows stay: they are few, and for as long as a store is away.
            final = (rid for rid, known in self._ends.items() if known.is_final)
            if (oldest := next(final, None)) is not None:
                del self._ends[oldest]

    def has_end(self, response_id: str) -> bool:
        """Whether it was sent the end that counts."""
        return (end := self._ends.get(response_id)) is not None and end.is_final

    def has_early_end(self, response_id: str) -> bool:
        """Whether it was sent an end before that was stored, and another one must follow."""
        return (end := self._ends.get(response_id)) is not None and not end.is_final

    def has_answered(self, response_id: str, asked: int | None = None) -> bool:
        """Whether the end that counts was sent after that request; None: ever."""
        end = self._ends.get(response_id)
        if end is None or not end.is_final or end.num_asked is None:
            return False
        return asked is None or end.num_asked >= asked

    def take_back(self, response_id: str) -> None:
        """An end that was sent early is not the end of that answer."""
        if self.has_early_end(response_id):
            del self._ends[response_id]

    def forget(self, session_id: str) -> None:
        """The session's past was lost: ends that were sent may be none any more."""
        for response_id in [rid for rid in self._ends if session_of(rid) == session_id]:
            if self.has_end(response_id):
                del self._ends[response_id]

    # ---- sessions -------------------------------------------------------------------------------

    def note_gone(self, session_id: str) -> None:
        """`session.deleted` was queued."""
        self._gone[session_id] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def is_gone(self, session_id: str) -> bool:
        return session_id in self._gone
