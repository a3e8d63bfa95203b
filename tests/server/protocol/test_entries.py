"""Entries of a session's log become the declared frames; those of a later version are sent on."""

from typing import Any

import orjson
import pytest

from server.protocol.encoding import encode
from server.protocol.entries import published_event_frame, session_event_frame
from server.protocol.server_frames import TYPES
from sessions.model.records import Session

SESSION = Session("ses_1", "alice", "t", "m", {}, 3, 1, 2, "e", 9, None, 0, 0, 0, None)
MESSAGE = {"id": "msg_1", "status": "completed", "content": [{"type": "text", "text": "hi"}]}
SESSION_EVENTS: list[dict[str, Any]] = [
    {"type": "session.created"},
    {"type": "session.updated", "by": "user", "changed": {"title": "t"}, "revision": 3},
    {"type": "session.evicted", "by": "admin", "reason": "spam"},
    {"type": "session.deleted", "session_id": "ses_1", "by": "user"},
    {"type": "message.created", "message": MESSAGE},
    {"type": "message.updated", "message": MESSAGE},
]


@pytest.mark.parametrize("data", SESSION_EVENTS, ids=lambda data: str(data["type"]))
def test_an_event_of_a_session_becomes_its_frame(data: dict[str, Any]) -> None:
    frame = session_event_frame(SESSION, 7, data)
    assert type(frame) is TYPES[data["type"]]
    sent = orjson.loads(encode(frame))
    assert sent["offset"] == 7
    for name in data.keys() - {"changed", "revision"}:
        assert sent[name] == data[name]
    if data["type"] in ("session.created", "session.updated"):
        assert sent["session"] == SESSION.wire()


def test_what_a_later_version_has_stored_is_sent_on() -> None:
    assert published_event_frame("ses_1", 7, {"type": "session.tagged", "tag": 1}) == {
        "type": "session.tagged",
        "tag": 1,
        "session_id": "ses_1",
        "offset": 7,
    }
