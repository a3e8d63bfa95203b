"""Records: lengths as browsers count, bodies and events that come back unchanged."""

from __future__ import annotations

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.codec import (
    decode_body,
    decode_live,
    decode_run,
    decode_token_ids,
    encode_body,
    encode_token_ids,
)
from sessions.model.events import (
    Event,
    LiveFrame,
    LiveResponseEvents,
    LiveSessionEvents,
    ObjectEvent,
    TextEvent,
    decode_event,
    encode_event,
)
from sessions.model.ids import new_message_id, new_response_id, new_session_id
from sessions.model.keys import Keys, shard_of
from sessions.model.records import Message, utf16_length
from sessions.model.replies import MessagePage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4000)


@given(texts)
def test_lengths_are_utf16_code_units(text: str) -> None:
    assert utf16_length(text) == len(text.encode("utf-16-le")) // 2


@given(texts, st.booleans())
def test_a_message_comes_back_as_it_was_stored(text: str, is_done: bool) -> None:
    message = Message(
        id=new_message_id(),
        parent_id=None,
        role="assistant",
        text=text,
        status="completed" if is_done else "in_progress",
        created_at=1,
        usage={"input_tokens": 1} if is_done else None,
    )
    assert decode_body(encode_body(message)) == message
    assert message.text_length == utf16_length(text)
    assert message.event_wire().get("content_omitted", False) == (len(text.encode()) > 2048)


def test_a_long_form_is_in_no_event() -> None:
    for length, is_left_out in ((100, False), (3000, True)):
        settings = {"seed": 1, "output": {"type": "regex", "pattern": "a" * length}}
        message = Message("m", None, "assistant", "Yes.", "completed", 1, settings=settings)
        event = message.event_wire()
        assert event["settings"] == ({"seed": 1} if is_left_out else settings)
        assert event.get("content_omitted", False) == ("content" not in event) == is_left_out
        assert decode_body(encode_body(message)) == message


def test_a_message_keeps_what_the_model_thought() -> None:
    message = Message("m", None, "assistant", "Yes.", "completed", 1, reasoning="Hm " * 10)
    assert decode_body(encode_body(message)) == message
    assert message.event_wire()["reasoning"] == "Hm " * 10
    long = replace(message, reasoning="Hm " * 1000)
    assert not {"content", "reasoning"} & long.event_wire().keys()
    assert long.wire_bytes > 3000


@given(st.integers(0, 2**40), texts, st.booleans(), st.booleans())
def test_a_text_event_comes_back_and_is_one_line(
    offset: int, delta: str, reasoning: bool, with_logprobs: bool
) -> None:
    logprobs = ({"token": delta, "logprob": -0.5, "top": []},) if with_logprobs else ()
    event = TextEvent(offset, delta, reasoning, logprobs)
    entry = encode_event(event)
    assert decode_event(entry) == event
    assert b"\n" not in entry


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_come_back(ids: list[int]) -> None:
    stored = encode_token_ids(ids)
    assert len(stored) == 4 * len(ids)
    assert decode_token_ids(stored) == ids


def test_token_ids_are_little_endian() -> None:
    assert encode_token_ids([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


def test_live_payloads_are_parsed() -> None:
    events: tuple[Event, ...] = (TextEvent(0, "a\nb"), ObjectEvent({"x": 1}))
    lines = b"\n".join(map(encode_event, events))
    payload = b"r resp_R 2 7 8\n" + lines
    assert decode_live("ses_A", payload) == LiveResponseEvents("resp_R", 2, 7, 8, events)
    assert decode_live("ses_A", b's Zr8 9\n{"a":1}\n{"b":2}') == LiveSessionEvents(
        "ses_A", "Zr8", 9, ({"a": 1}, {"b": 2})
    )
    assert decode_live(None, b'{"a":1}') == LiveFrame({"a": 1})


def test_records_can_be_encoded() -> None:
    run = decode_run(
        new_response_id(new_session_id()),
        {b"status": b"queued", b"fence": b"1", b"lease_until": b"2", b"sequence_number": b"1",
         b"created_at": b"1", b"num_tokens": b"0", b"seed": b"-5", b"note": b"x"},
    )  # fmt: skip
    assert run is not None and run.seed == -5 and run.extra == {"note": "x"}
    assert orjson.loads(orjson.dumps(run))["status"] == "queued"


def test_keys_of_a_session_share_a_slot_and_shards_are_even() -> None:
    keys = Keys("p:")
    assert keys.session("ses_A", "m") == "p:c:{ses_A}:m"
    assert keys.session_of_channel(keys.session_channel("ses_A")) == "ses_A"
    assert keys.session_of_channel(keys.user_channel("ses_A")) is None
    assert shard_of("123456789") == f"{0x31C3 % 64:02x}"  # the check value of this CRC


def test_a_page_is_cut_from_its_old_end() -> None:
    messages = tuple(
        Message(new_message_id(), None, "user", "x" * 1000, "completed", 1) for _ in range(5)
    )
    page = MessagePage(messages, has_more=False)
    assert page.cut(100_000) is page
    assert page.cut(4000) == MessagePage(messages[-2:], has_more=True)
    assert page.cut(1) == MessagePage(messages[-1:], has_more=True)
    escaped = replace(messages[0], text="\x01" * 1000)
    assert MessagePage((escaped, *messages[1:]), has_more=False).cut(7000).has_more
    assert MessagePage((), has_more=False).cut(1) == MessagePage((), has_more=False)


def test_calls_and_outputs_come_back_as_they_were_stored() -> None:
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{}"}
    calling = Message("m", None, "assistant", "", "completed", 1, tool_calls=[call])
    assert decode_body(encode_body(calling)) == calling
    given = replace(calling, tool_outputs=[{**call, "output": "x" * 3000}])
    assert not {"content", "tool_calls", "tool_outputs"} & given.event_wire().keys()
    assert given.wire_bytes > 3000 and Message.from_wire(given.wire()) == given
    long = replace(calling, tool_calls=[{**call, "arguments": "x" * 3000}])
    assert not {"content", "tool_calls"} & long.event_wire().keys()
    assert long.wire_bytes > 3000
    outputs = [{"call_id": "c", "output": "é"}, {"call_id": "d", "output": ""}]
    given = Message.of_outputs("t", "m", outputs, 1)
    assert decode_body(encode_body(given)) == given
    assert (given.role, given.text, given.text_length) == ("tool", "é", 1)
