"""What is left of a message of which something was deleted."""

from dataclasses import replace

import pytest

from server.api.items.input_items import messages_of, waiting_calls
from server.api.items.output_items import items_of, items_of_path
from server.api.items.redaction import without_item, without_output_of
from server.generation.chat_messages import chat_messages
from sessions.model.codec import decode_body, encode_body
from sessions.model.records import Message

QUESTION, ANSWER, OUTPUTS, END = messages_of(
    [
        {"role": "user", "content": "secret question"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "secret thought"}]},
        {"role": "assistant", "content": "secret words"},
        {"type": "function_call", "call_id": "c1", "name": "a", "arguments": '{"a": "secret"}'},
        {"type": "function_call", "call_id": "c2", "name": "b", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "secret output"},
        {"type": "function_call_output", "call_id": "c2", "output": "other output"},
        {"role": "assistant", "content": "the end"},
    ],
    at_ms=0,
)
PATH = [QUESTION, ANSWER, OUTPUTS, END]


def deleted(message: Message, item_id: str) -> Message:
    left = without_item(message, item_id)
    assert left is not None
    assert decode_body(encode_body(left)) == left
    return left


@pytest.mark.parametrize("message", PATH)
def test_each_item_can_go_alone_and_the_others_keep_their_ids(message: Message) -> None:
    items = items_of(message)
    for item in items:
        left = deleted(message, item["id"])
        assert items_of(left) == [each for each in items if each is not item]
        assert without_item(left, item["id"]) is None
        assert (left.id, left.parent_id, left.role) == (message.id, message.parent_id, message.role)


def test_all_of_them_can_go_and_nothing_of_them_is_left() -> None:
    left = PATH
    for item in items_of_path(PATH):
        left = [without_item(each, item["id"]) or each for each in left]
    assert items_of_path(left) == []
    assert "secret" not in str([each.wire() for each in left])
    assert chat_messages("", left, with_calls=True) == []


@pytest.mark.parametrize("item_id", ["msg_x", "rs_x", "fc_x_0", "", "mcp_x_7"])
def test_an_item_of_another_message_is_none(item_id: str) -> None:
    assert [without_item(each, item_id) for each in PATH] == [None] * 4
    assert without_item(OUTPUTS, OUTPUTS.id) is None


def test_a_model_reads_a_call_only_together_with_its_output() -> None:
    first = items_of(ANSWER)[2]["id"]
    without_call = [QUESTION, deleted(ANSWER, first), OUTPUTS, END]
    without_output = [QUESTION, ANSWER, deleted(OUTPUTS, items_of(OUTPUTS)[0]["id"]), END]
    for path in (without_call, without_output):
        told = chat_messages("", path, with_calls=True)
        assert [message["role"] for message in told] == ["user", "assistant", "tool", "assistant"]
        assert [call["function"]["name"] for call in told[1]["tool_calls"]] == ["b"]
        assert told[2]["content"] == "other output"


def test_a_deleted_call_waits_for_no_output_and_an_answered_one_does_not_again() -> None:
    left = deleted(ANSWER, items_of(ANSWER)[2]["id"])
    assert waiting_calls([left]) == {"c2"}
    assert waiting_calls([ANSWER, deleted(OUTPUTS, items_of(OUTPUTS)[0]["id"])]) == set()


def test_what_a_server_gave_back_goes_with_its_call() -> None:
    outcome = {"type": "function_call_output", "id": "fco", "call_id": "c1", "name": "a"}
    outcome |= {"server_label": "s", "output": "secret outcome", "status": "completed"}
    message = replace(ANSWER, tool_outputs=[outcome])
    item = items_of(message)[2]
    assert item["type"] == "mcp_call"
    assert "secret outcome" not in str(deleted(message, item["id"]).wire())
    left = without_output_of(OUTPUTS, "c1")
    assert left is not None and "secret" not in str(left.wire())
    assert without_output_of(left, "c1") is None and without_output_of(END, "c1") is None
