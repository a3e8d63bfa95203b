"""`chat_messages`: what a chat template is given of calls and their outputs."""

from dataclasses import replace
from typing import Any

from server.generation.chat_messages import chat_messages
from sessions.model.records import Message


def call(number: int, arguments: str = '{"a": 1}') -> dict[str, Any]:
    fields = {"id": f"fc_{number}", "call_id": f"call_{number}", "name": f"tool{number}"}
    return {"type": "function_call", **fields, "arguments": arguments, "status": "completed"}


def user(text: str) -> Message:
    return Message("u", None, "user", text, "completed", 1)


def calling(text: str, *calls: dict[str, Any]) -> Message:
    return Message("a", None, "assistant", text, "completed", 1, tool_calls=list(calls) or None)


def given(*numbers: int) -> Message:
    outputs = [{"call_id": f"call_{number}", "output": f"o{number}"} for number in numbers]
    return Message.of_outputs("t", None, outputs, 1)


ANSWERED = [user("q"), calling("", call(0), call(1)), given(0, 1), calling("answer")]


def test_outputs_find_their_calls() -> None:
    _, asked, first, second, answer = chat_messages("", ANSWERED, with_calls=True)
    assert [one["id"] for one in asked["tool_calls"]] == [
        first["tool_call_id"],
        second["tool_call_id"],
    ]
    assert (first["name"], first["content"], second["name"]) == ("tool0", "o0", "tool1")
    assert all(len(one["id"]) == 9 and one["id"].isalnum() for one in asked["tool_calls"])
    assert asked["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert answer == {"role": "assistant", "content": "answer"}


def test_arguments_may_be_text_and_are_if_they_are_no_json() -> None:
    messages = [user("q"), calling("", call(0, "{1}"), call(1)), given(0, 1)]
    (_, asked, *_), (_, texts, *_) = (
        chat_messages("", messages, with_calls=True, arguments_as_text=as_text)
        for as_text in (False, True)
    )
    assert [one["function"]["arguments"] for one in asked["tool_calls"]] == ["{1}", {"a": 1}]
    assert [one["function"]["arguments"] for one in texts["tool_calls"]] == ["{1}", '{"a": 1}']


def test_arguments_that_are_nested_very_deep_stay_text() -> None:
    deep, shallow = ('{"a":' * levels + "1" + "}" * levels for levels in (900, 60))
    messages = [user("q"), calling("", call(0, deep), call(1, shallow)), given(0, 1)]
    _, asked, *_ = chat_messages("", messages, with_calls=True)
    texts = [one["function"]["arguments"] for one in asked["tool_calls"]]
    assert texts[0] == deep and isinstance(texts[1], dict)


def test_a_model_without_tools_gets_the_texts_alone() -> None:
    messages = [*ANSWERED[:1], calling("I look.", call(0)), given(0), *ANSWERED[3:]]
    assert chat_messages("s", messages, with_calls=False) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look.\n\nanswer"},
    ]


def test_a_call_that_nobody_has_answered_is_left_out() -> None:
    messages = [user("q"), calling("", call(0)), user("never mind")]
    assert chat_messages("", messages, with_calls=True) == [
        {"role": "user", "content": "q\n\nnever mind"}
    ]


def test_calls_that_the_server_has_carried_out_are_there_although_a_question_follows() -> None:
    item = {"call_id": "call_1", "output": "o1", "status": "completed"}
    carried_out = replace(calling("I look.", call(0), call(1)), tool_outputs=[item])
    _, asked, told, question = chat_messages(
        "", [user("q"), carried_out, user("and?")], with_calls=True
    )
    assert [one["function"]["name"] for one in asked["tool_calls"]] == ["tool1"]
    assert (told["role"], told["content"]) == ("tool", "o1")
    assert told["tool_call_id"] == asked["tool_calls"][0]["id"]
    assert question == {"role": "user", "content": "and?"}
    # Where a message has them, they appear once.
    messages = [user("q"), carried_out, given(0, 1), calling("answer")]
    roles = [message["role"] for message in chat_messages("", messages, with_calls=True)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert len(chat_messages("", [user("q"), carried_out, user("and?")], with_calls=False)) == 3


def test_outputs_that_came_one_by_one_are_together_after_their_calls() -> None:
    messages = [user("q"), calling("", call(0), call(1)), given(1), given(0), calling("answer")]
    told = chat_messages("", messages, with_calls=True)
    assert [message["role"] for message in told] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [message["content"] for message in told[2:4]] == ["o1", "o0"]
    assert len(told[1]["tool_calls"]) == 2


def test_a_developer_speaks_as_the_system_does() -> None:
    developer = replace(user("be brief"), role="developer")
    system = replace(user("be kind"), role="system")
    assert chat_messages("s", [developer, system, user("q"), developer], with_calls=True) == [
        {"role": "system", "content": "s\n\nbe brief\n\nbe kind"},
        {"role": "user", "content": "q"},
        {"role": "system", "content": "be brief"},
    ]
