"""The frames of `chat.v1`, outbound: where stored events and records become frames."""

from typing import Any

from server.outbox import Outbox
from sessions.records import Event, Session, TextEvent

PROTOCOL = "chat.v1"
MAX_SNAPSHOT_PART = 64 * 1024  # characters; with escapes and UTF-8 a part stays under 256 KiB
MAX_REPLAY_CHARACTERS = 64 * 1024  # a longer replay is replaced by a snapshot


def error_frame(body: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": body}


def put_event(outbox: Outbox, response_id: str, number: int, fence: int, event: Event) -> None:
    """Queue one numbered entry of a response's log."""
    if isinstance(event, TextEvent):
        outbox.put_delta(response_id, number, fence, event.text_offset, event.delta)
        return
    frame = {**event.data, "sequence_number": number, "fence": fence}
    if frame["type"] == "response.created":
        frame["replayed"] = False
    outbox.put(frame, response_id)


def put_snapshot(outbox: Outbox, response_id: str, number: int, fence: int, text: str) -> None:
    """Queue the whole text of a response as of entry `number`, in parts if it is long."""
    parts = [text[i : i + MAX_SNAPSHOT_PART] for i in range(0, len(text), MAX_SNAPSHOT_PART)] or [
        ""
    ]
    for place, part in enumerate(parts, 1):
        frame = {
            "type": "response.output_text.snapshot",
            "response_id": response_id,
            "sequence_number": number,
            "fence": fence,
            "text": part,
            "part": place,
            "parts": len(parts),
        }
        outbox.put(frame, response_id)


def text_of(events: list[Event]) -> str:
    """The answer's text that these entries spell."""
    return "".join(event.delta for event in events if isinstance(event, TextEvent))


def session_event_frame(session: Session, offset: int, data: dict[str, Any]) -> dict[str, Any]:
    """A stored session event → its frame; `session` is as it is now."""
    frame = {**data, "session_id": session.id, "offset": offset}
    if data["type"] in ("session.created", "session.updated"):
        frame["session"] = session.wire()
        for internal in ("changed", "revision"):
            frame.pop(internal, None)
    return frame
