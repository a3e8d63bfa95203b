"""What a subscription is sent first."""

import msgspec
import pytest

from server.api.websocket.handlers import MAX_SNAPSHOT_BYTES, snapshot
from sessions.model.ids import new_message_id, new_session_id
from sessions.model.records import Message, Session
from sessions.model.replies import MessagePage

MAX_FRAME_BYTES = 256 * 1024


def build_session(system: str = "") -> Session:
    return Session(
        id=new_session_id(),
        uid="alice",
        title="",
        model="m",
        settings={"system": system},
        revision=1,
        created_at=1,
        updated_at=1,
        message_count=1,
        input_tokens=0,
        output_tokens=0,
        head=None,
        active_response_id=None,
        epoch="e",
        offset=1,
    )


@pytest.mark.parametrize("text", ["x" * 500_000, "\x01" * 150_000, "ö" * 150_000])
def test_a_newest_message_that_fits_no_frame_comes_without_its_content(text: str) -> None:
    message = Message(new_message_id(), None, "user", text, "completed", 1)
    frame = snapshot(build_session(), MessagePage((message, message), has_more=False))
    assert len(msgspec.json.encode(frame)) < MAX_FRAME_BYTES
    (shown,) = frame.messages
    assert shown.content_omitted is True
    assert shown.text_length == message.text_length
    assert frame.has_more is True


def test_a_long_system_text_leaves_room_for_fewer_messages() -> None:
    session = build_session("\n" * 32 * 1024)
    messages = tuple(
        Message(new_message_id(), None, "user", "x" * 20_000, "completed", 1) for _ in range(12)
    )
    frame = snapshot(session, MessagePage(messages, has_more=False))
    assert len(msgspec.json.encode(frame)) < MAX_FRAME_BYTES
    assert [message.id for message in frame.messages] == [m.id for m in messages[-9:]]
    assert frame.has_more is True


def test_the_forms_that_messages_were_made_in_count() -> None:
    settings = {"output": {"type": "regex", "pattern": "a" * 32_000}}
    message = Message(new_message_id(), None, "assistant", "a", "completed", 1, settings=settings)
    frame = snapshot(build_session(), MessagePage((message,) * 20, has_more=False))
    assert len(msgspec.json.encode(frame)) < MAX_FRAME_BYTES
    assert len(frame.messages) == 5
    assert frame.has_more is True


def test_a_message_that_fits_comes_whole() -> None:
    message = Message(new_message_id(), None, "user", "x" * 190_000, "completed", 1)
    frame = snapshot(build_session(), MessagePage((message,), has_more=False))
    assert MAX_SNAPSHOT_BYTES > len(msgspec.json.encode(frame)) > 190_000
    assert msgspec.to_builtins(frame.messages[0])["content"][0]["text"] == message.text
