"""Items → messages: which belong together, and what is refused by its name."""

from typing import Any

import pytest

from server.api.items.input_items import (
    MAX_ANSWER_BYTES,
    MAX_ITEMS,
    messages_of,
    waiting_calls,
)
from server.protocol.client_frames import MAX_INPUT_BYTES
from server.protocol.errors import ApiError
from sessions.model.codec import decode_body, encode_body
from sessions.model.records import Message

HELLO = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a": 1}'}
OTHER_CALL = {**CALL, "call_id": "c2"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
OTHER_OUTPUT = {**OUTPUT, "call_id": "c2", "output": "sun"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Good ", "annotations": [], "logprobs": []}],
}


def stored(items: Any, **more: Any) -> list[Message]:
    return messages_of(items, at_ms=7, **more)


def said(items: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in stored(items)]


def test_a_text_is_a_question() -> None:
    (message,) = stored("Hello", parent_id="msg_before")
    assert (message.role, message.text, message.status) == ("user", "Hello", "completed")
    assert (message.parent_id, message.created_at) == ("msg_before", 7)


def test_messages_are_a_chain() -> None:
    first, second, third = stored([HELLO, SAID, HELLO], parent_id="msg_before")
    assert [first.parent_id, second.parent_id, third.parent_id] == [
        "msg_before",
        first.id,
        second.id,
    ]
    assert len({first.id, second.id, third.id, "msg_1"}) == 4  # and none is the client's


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_a_role_stays_what_it_is_also_in_the_store(role: str) -> None:
    (message,) = stored([{"type": "message", "role": role, "content": "Yes"}])
    assert message.role == role
    assert decode_body(encode_body(message)) == message


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello", "Hello"),
        ([{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}], "Hello"),
        ([{"type": "output_text", "text": "Hello", "annotations": []}], "Hello"),
        ([{"type": "text", "text": "Hello"}], "Hello"),
        ([{"type": "refusal", "refusal": "No."}], "No."),
        ([], ""),
    ],
)
def test_parts_of_a_text_are_one_text(content: Any, text: str) -> None:
    assert said([{"role": "assistant", "content": content}]) == [("assistant", text)]


def test_thoughts_words_and_calls_are_one_message_and_outputs_the_next() -> None:
    answer, outputs = stored([THOUGHT, SAID, CALL, OTHER_CALL, OUTPUT, OTHER_OUTPUT])
    assert (answer.reasoning, answer.text) == ("Hm.", "Good ")
    assert [call["call_id"] for call in answer.tool_calls or ()] == ["c1", "c2"]
    assert outputs.role == "tool"
    assert outputs.outputs == [
        {"call_id": "c1", "output": "rain"},
        {"call_id": "c2", "output": "sun"},
    ]
    assert decode_body(encode_body(answer)) == answer
    assert decode_body(encode_body(outputs)) == outputs


def test_two_things_said_are_two_messages() -> None:
    assert said([SAID, SAID]) == [("assistant", "Good "), ("assistant", "Good ")]
    assert len(stored([THOUGHT, SAID, THOUGHT, SAID])) == 2


def test_outputs_stand_right_after_what_was_said_with_their_calls() -> None:
    answer, outputs = stored([SAID, CALL, THOUGHT, SAID, OTHER_CALL, OTHER_OUTPUT, OUTPUT])
    assert (answer.text, answer.reasoning) == ("Good \n\nGood ", "Hm.")
    assert len(outputs.outputs or ()) == 2


def test_a_call_after_an_output_is_another_answer() -> None:
    roles = [m.role for m in stored([CALL, OUTPUT, OTHER_CALL, OTHER_OUTPUT, SAID])]
    assert roles == ["assistant", "tool", "assistant", "tool", "assistant"]


def test_an_output_may_have_parts() -> None:
    parts = [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}]
    _, outputs = stored([CALL, {**OUTPUT, "output": parts}])
    assert outputs.outputs == [{"call_id": "c1", "output": "rain"}]


def test_an_answer_that_was_cut_is_interrupted_and_its_call_incomplete() -> None:
    cut = {**SAID, "status": "incomplete"}
    (message,) = stored([cut, {**CALL, "status": "in_progress"}])
    assert message.status == "interrupted"
    assert (message.tool_calls or [{}])[0]["status"] == "incomplete"


def test_a_summary_is_a_thought_where_there_is_no_other() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    (message,) = stored([{"type": "reasoning", "summary": summary}])
    assert message.reasoning == "a\n\nb"
    assert stored([{"type": "reasoning", "summary": []}]) == []


def test_outputs_may_come_later_than_their_calls() -> None:
    first = stored([CALL, OTHER_CALL])
    assert waiting_calls(first) == {"c1", "c2"}
    second = stored([OUTPUT], waiting=waiting_calls(first))
    assert waiting_calls([*first, *second]) == {"c2"}
    third = stored([OTHER_OUTPUT, HELLO], waiting=waiting_calls([*first, *second]))
    assert [message.role for message in third] == ["tool", "user"]
    assert waiting_calls([*first, *second, third[0]]) == set()
    assert waiting_calls([*first, *second, *third]) == waiting_calls([]) == set()


def test_what_the_server_has_carried_out_waits_for_nobody() -> None:
    (message,) = stored([CALL, OTHER_CALL])
    object.__setattr__(message, "tool_outputs", [{"call_id": "c1"}])
    assert waiting_calls([message]) == {"c2"}


LONG = "x" * (MAX_INPUT_BYTES + 1)
LONGER = "x" * (MAX_ANSWER_BYTES + 1)


@pytest.mark.parametrize(
    ("items", "param"),
    [
        (7, "input"),
        (None, "input"),
        ([HELLO] * (MAX_ITEMS + 1), "input"),
        ("", "input[0].content"),
        (["Hello"], "input[0]"),
        ([HELLO, {"role": "tool", "content": "x"}], "input[1].role"),
        ([{"content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 7}], "input[0].content"),
        ([{"role": "user", "content": []}], "input[0].content"),
        ([{"role": "system", "content": " "}], "input[0].content"),
        ([{"role": "user", "content": LONG}], "input[0].content"),
        ([{"role": "assistant", "content": LONGER}], "input[0].content"),
        ([{**SAID, "status": "done"}], "input[0].status"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "input[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "input[0].content[0].type",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "x"}, {"type": "input_file"}],
                }
            ],
            "input[0].content[1].type",
        ),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ([{"type": "computer_call"}], "input[0].type"),
        ([{"type": ["message"]}], "input[0].type"),
        ([{"type": "reasoning", "encrypted_content": "x"}], "input[0].encrypted_content"),
        ([{**THOUGHT, "content": [{"type": "image"}]}], "input[0].content[0].type"),
        (
            [{**THOUGHT, "content": [{"type": "reasoning_text", "text": LONGER}]}],
            "input[0].content",
        ),
        ([{**CALL, "name": ""}], "input[0].name"),
        ([{**CALL, "call_id": "x" * 129}], "input[0].call_id"),
        ([{**CALL, "arguments": {}}], "input[0].arguments"),
        ([{**CALL, "arguments": LONGER}], "input[0].arguments"),
        ([{**CALL, "namespace": "x"}], "input[0].namespace"),
        ([{**CALL, "async": True}], "input[0].async"),
        ([{**CALL, "caller": {"type": "program", "caller_id": "x"}}], "input[0].caller"),
        ([CALL, CALL], "input[1].call_id"),
        ([OUTPUT], "input[0].call_id"),
        ([CALL, OTHER_OUTPUT], "input[1].call_id"),
        ([CALL, OUTPUT, OUTPUT], "input[2].call_id"),
        ([CALL, HELLO, OUTPUT], "input[2].call_id"),
        ([CALL, {**OUTPUT, "call_id": None}], "input[1].call_id"),
        ([CALL, {**OUTPUT, "output": LONG}], "input[1].output"),
        (
            [CALL, {**OUTPUT, "output": [{"type": "input_image", "file_id": "x"}]}],
            "input[1].output[0].type",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_name(items: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        stored(items)
    assert refused.value.param == param
    assert refused.value.code in ("invalid_field", "message_too_large")


def test_a_refusal_says_what_the_client_calls_the_list() -> None:
    with pytest.raises(ApiError, match="type") as refused:
        stored([{"type": "compaction"}], param="items")
    assert refused.value.param == "items[0].type"


def test_a_caller_that_is_the_model_and_fields_of_other_servers_are_taken() -> None:
    call = {**CALL, "caller": {"type": "direct"}, "async": False, "created_by": "x", "id": None}
    output = {**OUTPUT, "caller": {"type": "direct"}, "status": "completed", "name": "weather"}
    assert len(stored([{**SAID, "phase": "final_answer"}, call, output])) == 2
