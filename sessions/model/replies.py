"""What the store answers: the replies of the scripts, as types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sessions.model.queue import Queue
from sessions.model.records import Message, Session


@dataclass(frozen=True, slots=True)
class CreatedSession:
    """`replayed`: the session existed already, made by the same user with the same key."""

    session: Session
    replayed: bool


@dataclass(frozen=True, slots=True)
class DeletedSession:
    """`offset` of the last event; the runs whose keys are gone, so that their owners stop them."""

    offset: int
    response_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Newest updated first; pass `next_cursor` on for older ones, None means no more."""

    sessions: tuple[Session, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A part of one path through the tree, oldest first; `has_more`: older ones exist."""

    messages: tuple[Message, ...]
    has_more: bool

    def cut(self, max_bytes: int) -> MessagePage:
        """The newest of these messages that fit, but at least one."""
        size = 0
        for place, message in enumerate(reversed(self.messages)):
            size += message.wire_bytes
            if place and size > max_bytes:
                return MessagePage(self.messages[-place:], has_more=True)
        return self


@dataclass(frozen=True, slots=True)
class CallDecision:
    """What counts of the words on a call, and who waits for it."""

    decision: str
    owner: str


@dataclass(frozen=True, slots=True)
class LiveResponses:
    """What a session is busy with: the active response and those that wait for it, in order."""

    active: str | None
    queued: tuple[str, ...]
    place: str | None = None  # that `Runs.finish` has stored of the answer before

    @property
    def ids(self) -> list[str]:
        """All of them, the active one first."""
        return [*self.queued] if self.active is None else [self.active, *self.queued]


@dataclass(frozen=True, slots=True)
class BegunResponse:
    """The answer to `Responses.begin`.

    With `replayed` the key had begun `response_id` before, and the other fields describe that run
    as far as it is still known (`fence` 0: no longer). `queued_behind` counts the responses that
    come first. `offset` is the last session event. `cancel`: an early stop waited for this key, so
    the run must end `cancelled`. `parent_id` is the parent that the first new message got.
    """

    replayed: bool
    response_id: str
    fence: int
    queued_behind: int
    offset: int
    epoch: str
    now_ms: int
    cancel: bool
    title_empty: bool
    parent_id: str | None
    lease_until: int = 0
    hidden: bool = False  # the session is in no list
    place: str | None = None  # that `Runs.finish` has stored of the answer before


@dataclass(frozen=True, slots=True)
class WrittenQueue:
    """A queue as it was stored, the `offset` of its event, and the session's active response."""

    queue: Queue
    offset: int
    active_response_id: str | None


@dataclass(frozen=True, slots=True)
class AddedInput:
    """What became of an input: `written` if it was added just now, else a repeat found it so."""

    status: Literal["waiting", "begun", "removed"]
    response_id: str | None = None  # that it has begun
    written: WrittenQueue | None = None


class AppendReply(NamedTuple):  # made for each append: a frozen dataclass takes four times as long
    """`cancel`: somebody asked for a stop. `repeated`: an earlier try had stored these already."""

    cancel: bool
    lease_until: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The stop can no longer lose. `first`: no stop of this run was stored before."""

    owner: str
    fence: int
    lease_until: int
    status: str
    first: bool
    cancel_at: int  # when the first caller asked, by Redis' clock, milliseconds since 1970


@dataclass(frozen=True, slots=True)
class Turn:
    """A session with what waits in it, and whether its user was disabled or removed."""

    session: Session
    queue: Queue
    is_user_gone: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """`sequence_number` of `response.done`, `offset` of `message.updated`, and who comes next.

    `has_queue`: something waits in the session's queue; `turn` has it, where it was asked for.
    """

    offset: int
    sequence_number: int
    next_response_id: str | None
    repeated: bool = False
    has_queue: bool = False
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """The run is ours from `sequence_number` on; `seen` is the asker's, None if unknown."""

    fence: int
    sequence_number: int
    status: str
    cancel: bool
    seen: int | None
    old_owner: str
    lease_until: int = 0


@dataclass(frozen=True, slots=True)
class StoreFault:
    """What is wrong with Redis, in one line for an operator; `loses_data`: any moment now."""

    text: str
    loses_data: bool = False
