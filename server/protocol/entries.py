"""What the logs of sessions hold, as the frames that it becomes, and which ends are final.

`server/live/response_log.py` does the same for the logs of answers. An entry of a kind that this
version does not know is sent on as it is: a later one has stored it.
"""

from collections.abc import Mapping
from typing import Any

from server.protocol.encoding import of_stored
from server.protocol.objects import MessageObject, QueueObject
from server.protocol.server_frames import (
    MessageCreated,
    MessageUpdated,
    QueueUpdated,
    SessionCreated,
    SessionDeleted,
    SessionEntry,
    SessionEvicted,
    SessionUpdated,
)
from sessions.model.records import Session

SessionFrame = SessionEntry | SessionCreated | Mapping[str, Any]

_SESSION_KINDS: dict[str, type[SessionEntry]] = {
    "message.created": MessageCreated,
    "message.updated": MessageUpdated,
    "queue.updated": QueueUpdated,
    "session.evicted": SessionEvicted,
    "session.deleted": SessionDeleted,
}


def is_final(done: Mapping[str, Any]) -> bool:
    """Whether no other `response.done` follows: it is stored, or nothing ever will be."""
    is_stored = done.get("durable", True)
    return bool(is_stored or done["response"]["status_details"]["reason"] == "store_lost")


def session_event_frame(session: Session, offset: int, data: Mapping[str, Any]) -> SessionFrame:
    """A stored session event → its frame; `session` is as it is now."""
    if data["type"] == "session.created":
        return SessionCreated.of(session, offset=offset)
    if data["type"] == "session.updated":
        return SessionUpdated.of(session, data["by"], offset=offset)
    return published_event_frame(session.id, offset, data)


def published_event_frame(session_id: str, offset: int, data: Mapping[str, Any]) -> SessionFrame:
    """The same for an event whose frame does not hold the session."""
    entry = {**data, "session_id": session_id, "offset": offset}
    if "message" in data:
        entry["message"] = of_stored(MessageObject, data["message"])
    if "queue" in data:
        entry["queue"] = of_stored(QueueObject, data["queue"])
    kind = _SESSION_KINDS.get(data["type"])
    return entry if kind is None else of_stored(kind, entry)
