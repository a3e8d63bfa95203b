"""Entries of an answer's log, as their tests show them."""

from server.protocol.entries import SessionFrame, published_event_frame
from server.protocol.server_frames import SessionDeleted
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.records import Message

RESPONSE = "resp_" + "A" * 33
MESSAGE = Message("msg_" + "A" * 22, None, "assistant", "", "in_progress", 1, response_id=RESPONSE)
CREATED = ObjectEvent({"type": "response.created"})
DONE = ObjectEvent({"type": "response.done", "response": {"text_length": 14}})


def texts(*parts: str) -> list[Event]:
    """Text events at their offsets."""
    events: list[Event] = []
    length = 0
    for part in parts:
        events.append(TextEvent(length, part))
        length += len(part)
    return events


LOG = [CREATED, *texts("one ", "two ", "three ")]


def message_updated(offset: int, status: str = "completed") -> SessionFrame:
    """The session event that may end the message of `RESPONSE`."""
    message = {"response_id": RESPONSE, "status": status}
    return published_event_frame("ses", offset, {"type": "message.updated", "message": message})


def session_deleted(offset: int) -> SessionFrame:
    """The last event of the session `ses`."""
    return SessionDeleted(session_id="ses", offset=offset, by="user")
