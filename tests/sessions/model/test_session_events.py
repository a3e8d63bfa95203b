"""The kinds of entries of a session's log are named in one place, scripts included."""

import re
from typing import get_args

import orjson

from sessions.connection.scripts import FOLDER
from sessions.model.session_events import (
    SessionDeletedEvent,
    SessionEvictedEvent,
    StoredEvent,
    encode_session_event,
)

KINDS = {kind.__dataclass_fields__["type"].default for kind in get_args(StoredEvent)}


def test_an_event_is_stored_with_its_type_first() -> None:
    event = SessionEvictedEvent(by="admin", reason="spam")
    stored = b'{"type":"session.evicted","by":"admin","reason":"spam"}'
    assert encode_session_event(event) == stored
    deleted = encode_session_event(SessionDeletedEvent(session_id="ses_1", by="user"))
    assert orjson.loads(deleted) == {
        "type": "session.deleted",
        "session_id": "ses_1",
        "by": "user",
    }


def test_scripts_write_events_of_these_kinds_alone() -> None:
    text = "\n".join(
        re.sub(r"--.*", "", path.read_text()) for path in sorted(FOLDER.rglob("*.lua"))
    )
    written = set(re.findall(r"\b(?:session|message|viewer|response)\.[a-z_]+\b(?!\()", text))
    assert {"message.created", "message.updated"} <= written
    assert written - KINDS == {"viewer.changed"}  # which no log holds
