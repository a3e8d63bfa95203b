"""What the logs of sessions and answers hold, as the frames that it becomes."""

from collections.abc import Mapping
from typing import Any

from server.protocol.server_frames import SessionCreated
from sessions.model.records import Session


def is_final(done: Mapping[str, Any]) -> bool:
    """Whether no other `response.done` follows: it is stored, or nothing ever will be."""
    is_stored = done.get("durable", True)
    return bool(is_stored or done["response"]["status_details"]["reason"] == "store_lost")


def session_event_frame(session: Session, offset: int, data: dict[str, Any]) -> dict[str, Any]:
    """A stored session event → its frame; `session` is as it is now."""
    if data["type"] == "session.created":
        return {**SessionCreated.of(session).wire(), "offset": offset}
    frame = {**data, "session_id": session.id, "offset": offset}
    if data["type"] == "session.updated":
        frame["session"] = session.wire()
        for internal in ("changed", "revision"):
            frame.pop(internal, None)
    return frame
