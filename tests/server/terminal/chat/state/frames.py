"""Frames of a server that a test writes."""

from typing import Any

Frame = dict[str, Any]
SESSION, RESPONSE = "ses_A", "resp_R"


def created(number: int = 1, **more: Any) -> Frame:
    response = {
        "id": RESPONSE,
        "session_id": SESSION,
        "message_id": "msg_2",
        "parent_id": "msg_1",
        "status": "queued",
    }
    frame = {"type": "response.created", "response": response, "idempotency_key": "k"}
    return {**frame, "sequence_number": number, "fence": 1, "replayed": False, **more}


def delta(number: int, offset: int, text: str, first: int | None = None) -> Frame:
    frame = {"type": "response.output_text.delta", "response_id": RESPONSE, "fence": 1}
    more = {} if first is None else {"first_sequence_number": first}
    return {**frame, "sequence_number": number, "text_offset": offset, "delta": text, **more}


def snapshot(number: int, text: str, part: int = 1, parts: int = 1, fence: int = 1) -> Frame:
    frame = {"type": "response.output_text.snapshot", "response_id": RESPONSE, "fence": fence}
    return {**frame, "sequence_number": number, "text": text, "part": part, "parts": parts}


def done(number: int, length: int, status: str = "completed", **more: Any) -> Frame:
    response = {
        "id": RESPONSE,
        "status": status,
        "status_details": {"reason": "eos"},
        "text_length": length,
        "usage": {"output_tokens": 3},
        "timings": {},
    }
    frame = {"type": "response.done", "response": response, "durable": True, "fence": 1}
    return {**frame, "sequence_number": number, **more}


def question(text: str = "How?", **more: Any) -> Frame:
    return {
        "id": "msg_1",
        "parent_id": None,
        "role": "user",
        "status": "completed",
        "content": [{"type": "text", "text": text}],
        "text_length": len(text),
        **more,
    }


def answer(text: str = "", status: str = "in_progress", **more: Any) -> Frame:
    return {
        "id": "msg_2",
        "parent_id": "msg_1",
        "role": "assistant",
        "status": status,
        "response_id": RESPONSE,
        "content": [{"type": "text", "text": text}] if text else [],
        **more,
    }


def message_event(offset: int, message: Frame, kind: str = "message.created") -> Frame:
    return {"type": kind, "session_id": SESSION, "offset": offset, "message": message}


def subscribed(offset: int, *messages: Frame, **more: Any) -> Frame:
    session = {"id": SESSION, "title": "Harbours"}
    taken = {"session": session, "messages": list(messages), "has_more": False}
    frame = {"type": "session.subscribed", "session_id": SESSION, "epoch": "E", "offset": offset}
    return {**frame, "recovered": False, "active_responses": [], "snapshot": taken, **more}
