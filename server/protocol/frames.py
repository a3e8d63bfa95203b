"""The frames of `chat.v1`, outbound: where stored events and records become frames."""

from collections.abc import Mapping
from typing import Any

from sessions.model.records import Session

PROTOCOL = "chat.v1"


def error_frame(body: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": body}


def rate_limits_frame(*entries: dict[str, Any]) -> dict[str, Any]:
    """What is left of some limits: `name`, `limit`, `remaining`, `reset_seconds`."""
    return {"type": "rate_limits.updated", "rate_limits": list(entries)}


def queued_frame(
    response_id: str, reason: str, position: int = 0, **estimates: int | None
) -> dict[str, Any]:
    """What an answer waits for: engine, session, engine_restart or takeover.

    `ahead_tokens` and `eta_ms` are left out where nothing is known.
    """
    return {
        "type": "response.queued",
        "response_id": response_id,
        "reason": reason,
        "position": position,
        **{name: value for name, value in estimates.items() if value is not None},
    }


def is_final(done: Mapping[str, Any]) -> bool:
    """Whether no other `response.done` follows: it is stored, or nothing ever will be."""
    is_stored = done.get("durable", True)
    return bool(is_stored or done["response"]["status_details"]["reason"] == "store_lost")


def created_frame(session: Session, *, replayed: bool = False) -> dict[str, Any]:
    """`session.created`."""
    return {
        "type": "session.created",
        "session": session.wire(),
        "epoch": session.epoch,
        "offset": session.offset,
        "replayed": replayed,
    }


def session_event_frame(session: Session, offset: int, data: dict[str, Any]) -> dict[str, Any]:
    """A stored session event → its frame; `session` is as it is now."""
    if data["type"] == "session.created":
        return {**created_frame(session), "offset": offset}
    frame = {**data, "session_id": session.id, "offset": offset}
    if data["type"] == "session.updated":
        frame["session"] = session.wire()
        for internal in ("changed", "revision"):
            frame.pop(internal, None)
    return frame
