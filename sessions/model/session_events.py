"""The entries of a session's log as this package writes them: one type for each kind.

An entry is stored as the JSON of its fields, `type` first. Scripts complete two kinds: they add the
revision to `session.updated`, and write the message events of a response that begins. Readers get
entries as dictionaries (`SessionEvent.data`), since a later version may have stored other kinds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreatedEvent:
    """The first entry."""

    type: Literal["session.created"] = field(default="session.created", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUpdatedEvent:
    """Who changed which fields, with their new values; `revision` is added where it is counted."""

    type: Literal["session.updated"] = field(default="session.updated", init=False)
    by: str
    changed: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvictedEvent:
    """An admin sends the viewers away."""

    type: Literal["session.evicted"] = field(default="session.evicted", init=False)
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeletedEvent:
    """The last one. It is published and not stored: the log goes with its session."""

    type: Literal["session.deleted"] = field(default="session.deleted", init=False)
    session_id: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCreatedEvent:
    """A new message, as `Message.event_wire` gives it; written by `begin_response.lua`."""

    type: Literal["message.created"] = field(default="message.created", init=False)
    message: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUpdatedEvent:
    """A message goes on, which `begin_response.lua` writes, or is finished."""

    type: Literal["message.updated"] = field(default="message.updated", init=False)
    message: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUpdatedEvent:
    """What waits to be asked, as it is now; the prelude's `new_queue_event` writes it."""

    type: Literal["queue.updated"] = field(default="queue.updated", init=False)
    queue: dict[str, Any]


StoredEvent = (
    SessionCreatedEvent
    | SessionUpdatedEvent
    | SessionEvictedEvent
    | SessionDeletedEvent
    | MessageCreatedEvent
    | MessageUpdatedEvent
    | QueueUpdatedEvent
)


def encode_session_event(event: StoredEvent) -> bytes:
    """The JSON of one entry."""
    return orjson.dumps(event)
