"""Messages → items, each held to OpenAI's own types."""

from dataclasses import replace
from typing import Any

from server.api.items.input_items import messages_of
from server.api.items.output_items import items_of, items_of_path
from sessions.model.records import Message
from tests.end_to_end.sdks.environment import strict_problems

ID = "msg_abcdefghijklmnopqrstuv"
TAIL = "abcdefghijklmnopqrstuv"
CALL = {
    "type": "function_call",
    "id": "fc_of_the_log",
    "call_id": "c1",
    "name": "weather",
    "arguments": "{}",
    "status": "completed",
}
DONE = {
    "type": "function_call_output",
    "id": "fco_of_the_log",
    "call_id": "c1",
    "name": "weather",
    "server_label": "sky",
    "output": "rain",
    "status": "completed",
}
ANSWER = Message(ID, None, "assistant", "Good.", "completed", 0)


def test_an_answer_is_thoughts_words_and_calls_in_this_order() -> None:
    message = replace(ANSWER, reasoning="Hm.", tool_calls=[CALL, {**CALL, "call_id": "c2"}])
    assert items_of(message) == [
        {
            "id": f"rs_{TAIL}",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "status": "completed",
        },
        {
            "id": ID,
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "Good.", "annotations": [], "logprobs": []}
            ],
        },
        *(
            {
                "id": f"fc_{TAIL}_{place}",
                "type": "function_call",
                "call_id": call_id,
                "name": "weather",
                "arguments": "{}",
                "status": "completed",
            }
            for place, call_id in enumerate(["c1", "c2"])
        ),
    ]


def test_an_answer_without_words_has_an_item_of_its_own_only_if_there_is_nothing_else() -> None:
    empty = replace(ANSWER, text="", status="in_progress")
    (item,) = items_of(empty)
    assert (item["content"], item["status"]) == ([], "in_progress")
    assert [each["type"] for each in items_of(replace(empty, reasoning="Hm."))] == ["reasoning"]
    assert [each["type"] for each in items_of(replace(empty, tool_calls=[CALL]))] == [
        "function_call"
    ]


def test_what_was_cut_or_failed_is_incomplete() -> None:
    for status in ("interrupted", "failed"):
        message = replace(ANSWER, status=status, tool_calls=[{**CALL, "status": "failed"}])
        assert [each["status"] for each in items_of(message)] == ["incomplete", "incomplete"]


def test_what_others_say_is_input() -> None:
    for role in ("user", "system", "developer"):
        (item,) = items_of(replace(ANSWER, role=role))
        assert item["role"] == role
        assert item["content"] == [{"type": "input_text", "text": "Good."}]


def test_a_call_that_the_server_carries_out_says_what_became_of_it() -> None:
    message = replace(ANSWER, text="", tool_calls=[CALL], tool_outputs=[DONE])
    (item,) = items_of(message)
    assert (item["type"], item["id"]) == ("mcp_call", f"mcp_{TAIL}_0")
    assert (item["server_label"], item["output"], item["error"]) == ("sky", "rain", None)
    failed = replace(message, tool_outputs=[{**DONE, "status": "denied", "output": "No."}])
    (item,) = items_of(failed)
    assert (item["status"], item["output"]) == ("failed", None)
    assert item["error"] == {"type": "mcp_tool_execution_error", "content": "No."}
    (item,) = items_of(replace(message, tool_outputs=[{**DONE, "status": "in_progress"}]))
    assert (item["status"], item["error"]) == ("calling", None)


def test_an_output_that_is_in_its_call_already_is_no_second_item() -> None:
    own = {**CALL, "call_id": "c2"}
    answer = replace(ANSWER, tool_calls=[CALL, own], tool_outputs=[DONE])
    given_back = [{"call_id": "c2", "output": "x"}, {"call_id": "c1", "output": "rain"}]
    outputs = Message.of_outputs(ID[:-1] + "x", ID, given_back, 0)
    kinds = [(each["type"], each["id"][-1]) for each in items_of_path([answer, outputs])]
    assert kinds == [
        ("message", "v"),
        ("mcp_call", "0"),
        ("function_call", "1"),
        ("function_call_output", "0"),
    ]
    assert len(items_of_path([outputs], answer)) == 1
    assert len(items_of_path([outputs])) == 2


GIVEN: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "Not yet."}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{"},
    {"type": "function_call_output", "call_id": "c1", "output": ""},
    {"role": "assistant", "content": "", "status": "incomplete"},
]


def test_what_comes_in_goes_out_again_and_is_taken_again() -> None:
    items = items_of_path(messages_of(GIVEN, at_ms=0))
    assert [(each["type"], each.get("role")) for each in items] == [
        (each.get("type", "message"), each.get("role")) for each in GIVEN
    ]
    again = items_of_path(messages_of(items, at_ms=0))
    assert [{**each, "id": ""} for each in again] == [{**each, "id": ""} for each in items]
    assert len({each["id"] for each in items + again}) == 2 * len(items)


def test_every_item_is_what_openais_types_say() -> None:
    waiting = {**DONE, "status": "awaiting_consent"}
    messages = [
        *messages_of(GIVEN, at_ms=0),
        *messages_of("Hello", at_ms=0),
        *(replace(ANSWER, status=status) for status in ("in_progress", "interrupted", "failed")),
        replace(ANSWER, reasoning="Hm.", tool_calls=[CALL, {**CALL, "status": "failed"}]),
        *(
            replace(ANSWER, tool_calls=[CALL], tool_outputs=[{**DONE, "status": status}])
            for status in ("completed", "failed", "denied", "cancelled", "unknown")
        ),
        replace(ANSWER, tool_calls=[CALL], tool_outputs=[waiting]),
    ]
    items = items_of_path(messages)
    assert {each["type"] for each in items} == {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "mcp_call",
    }
    assert (
        strict_problems(
            ("conversations.conversation_item:ConversationItem", each) for each in items
        )
        == ""
    )
    answers = [each for each in items if each.get("role") in (None, "assistant")]
    kind = "responses.response_output_item:ResponseOutputItem"
    assert strict_problems((kind, each) for each in answers) == ""
    (problem,) = strict_problems([(kind, {**answers[-1], "more": 1})]).splitlines()
    assert "more is known to no type" in problem
