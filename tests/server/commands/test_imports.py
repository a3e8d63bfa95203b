"""Imports: a file is held to the limits of the live path, and becomes a tree with fresh ids."""

import json
from typing import Any

import pytest

from server.commands.imports import MAX_ANSWER_BYTES, MAX_USAGE_TOKENS, parse_import
from server.protocol.client_frames import MAX_INPUT_BYTES
from server.protocol.errors import ApiError

pytestmark = pytest.mark.row("B48")


QUESTION: dict[str, Any] = {
    "id": "q",
    "role": "user",
    "content": [{"type": "text", "text": "hello"}],
}
ANSWER: dict[str, Any] = {**QUESTION, "id": "a", "role": "assistant", "parent_id": "q"}


def file(*messages: Any, **changed: Any) -> bytes:
    body = {"format": "parley.session", "version": 1, "messages": list(messages), **changed}
    return json.dumps(body).encode()


def refusal(data: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_import(data, "m")
    return caught.value


def test_a_file_becomes_a_draft_with_fresh_ids() -> None:
    session = {"title": "a\r\nb", "settings": {"top_p": 0.5}, "uid": "somebody else"}
    draft = parse_import(file(QUESTION, ANSWER, session=session, owner="bob"), "m")
    assert (draft.title, draft.model, draft.settings) == ("a b", "m", {"top_p": 0.5})
    question, answer = draft.messages
    assert question.id.startswith("msg_") and answer.parent_id == question.id
    assert draft.head == answer.id
    assert answer.status == "completed" and answer.response_id is None


def test_the_head_may_be_another_than_the_last() -> None:
    draft = parse_import(file(QUESTION, ANSWER, head="q"), "m")
    assert draft.head == draft.messages[0].id


def test_an_empty_file_is_an_empty_conversation() -> None:
    draft = parse_import(file(), "m")
    assert (draft.messages, draft.head) == ([], None)


@pytest.mark.row("B48")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{**QUESTION, "role": "critic"}], "messages[0].role"),
        ([{**QUESTION, "role": "tool"}], "messages[0].content"),
        ([QUESTION, QUESTION], "messages[1].id"),
        ([{**QUESTION, "parent_id": "q"}], "messages[0].parent_id"),
        ([ANSWER, QUESTION], "messages[0].parent_id"),
        ([{**QUESTION, "status": "in_progress"}], "messages[0].status"),
        ([{**QUESTION, "content": [{"type": "text", "text": " "}]}], "messages[0].content"),
        ([{**QUESTION, "content": []}], "messages[0].content"),
        ([{**QUESTION, "content": [{"type": "image", "text": "x"}]}], "messages[0].content"),
        ([{**QUESTION, "created_at": -1}], "messages[0].created_at"),
        ([{**QUESTION, "created_at": 2**60}], "messages[0].created_at"),
        ([{**QUESTION, "usage": {"input_tokens": 2**53}}], "messages[0].usage.input_tokens"),
        ([{**QUESTION, "usage": {"output_tokens": -1}}], "messages[0].usage.output_tokens"),
        ([{**QUESTION, "id": ""}], "messages[0].id"),
        ([7], "messages[0]"),
    ],
)
def test_an_import_that_the_live_path_would_refuse_is_refused(
    messages: list[Any], param: str
) -> None:
    error = refusal(file(*messages))
    assert error.code == "invalid_field"
    assert error.param is not None and error.param.startswith(param)


@pytest.mark.row("B48")
def test_imported_texts_have_the_limits_of_the_live_path() -> None:
    for message, most in ((QUESTION, MAX_INPUT_BYTES), (ANSWER, MAX_ANSWER_BYTES)):
        within = {**message, "content": [{"type": "text", "text": "x" * most}]}
        beyond = {**message, "content": [{"type": "text", "text": "x" * (most + 1)}]}
        first = [] if message is QUESTION else [QUESTION]
        assert len(parse_import(file(*first, within), "m").messages) == len(first) + 1
        assert refusal(file(*first, beyond)).code == "message_too_large"


def test_as_many_outputs_are_imported_as_an_answer_has_calls() -> None:
    text = "x" * MAX_INPUT_BYTES  # of one, as the server's may come beside a client's
    ids = [f"c{number}" for number in range(150)]
    calls = [{"call_id": each, "name": "f", "arguments": "{}"} for each in ids]
    parts = [{"type": "text", "text": "no", "call_id": each} for each in ids]
    parts[0]["text"] = text
    given = {"id": "t", "parent_id": "a", "role": "tool", "content": parts}
    draft = parse_import(file(QUESTION, {**ANSWER, "tool_calls": calls}, given), "m")
    outputs = draft.messages[2].outputs or []
    assert [each["call_id"] for each in outputs] == ids
    assert outputs[0]["output"] == text


def test_an_imported_answer_keeps_its_thoughts_and_a_question_has_none() -> None:
    thinking = {"reasoning": "Hm."}
    draft = parse_import(file({**QUESTION, **thinking}, {**ANSWER, **thinking}), "m")
    assert [message.reasoning for message in draft.messages] == [None, "Hm."]
    error = refusal(file(QUESTION, {**ANSWER, "reasoning": "x" * (MAX_ANSWER_BYTES + 1)}))
    assert (error.code, error.param) == ("message_too_large", "messages[1].reasoning")


@pytest.mark.row("B48")
def test_an_imported_answer_may_have_used_more_tokens_than_any_context_holds() -> None:
    usage = dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens"), MAX_USAGE_TOKENS)
    draft = parse_import(file(QUESTION, {**ANSWER, "usage": usage}), "m")
    assert draft.messages[1].usage == usage
    for name in usage:
        error = refusal(file(QUESTION, {**ANSWER, "usage": {name: MAX_USAGE_TOKENS + 1}}))
        assert (error.code, error.param) == ("invalid_field", f"messages[1].usage.{name}")


@pytest.mark.row("B48")
@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"format": "chatgpt"}, "format"),
        ({"version": 2}, "version"),
        ({"head": "nobody"}, "head"),
        ({"session": {"title": "x" * 201}}, "session.title"),
        ({"session": {"settings": {"n": 5}}}, "session.settings"),
        ({"session": {"settings": {"system": "x" * 40_000}}}, "session.settings.system"),
        ({"messages": {}}, "messages"),
    ],
)
def test_the_rest_of_an_imported_file_is_checked_too(changed: dict[str, Any], param: str) -> None:
    error = refusal(file(**changed))
    assert (error.code, error.param) == ("invalid_field", param)


@pytest.mark.row("B48")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"x":' + b"[" * 100_000,
        b"\xff\xfe",
        b'{"a":' * 50_000,
        b'{"format":"\\ud800"}',
        b"nul",
    ],
)
def test_an_import_that_is_not_json_is_refused(data: bytes) -> None:
    assert refusal(data).code == "invalid_json"


@pytest.mark.parametrize("name", ["output", "tools"])
@pytest.mark.parametrize("is_deep", [False, True])
def test_settings_with_what_no_frame_may_have_are_refused(name: str, is_deep: bool) -> None:
    schema: dict[str, Any] = {"maximum": 1 if is_deep else 2**70}
    for _ in range(300 if is_deep else 0):
        schema = {"items": schema}
    given = {
        "output": {"type": "json_schema", "schema": schema},
        "tools": [{"type": "function", "name": "clock", "parameters": schema}],
    }
    error = refusal(file(session={"settings": {name: given[name]}}))
    assert (error.code, error.param) == ("invalid_field", f"settings.{name}")


CALLED: dict[str, Any] = {
    **ANSWER,
    "tool_calls": [{"call_id": "c", "name": "clock__now", "arguments": "{}"}],
}
DENIED: dict[str, Any] = {
    "call_id": "c",
    "server_label": "clock",
    "output": "error tool_denied: the user said no",
    "status": "denied",
    "code": "tool_denied",
}


def test_what_became_of_calls_comes_back_with_them() -> None:
    draft = parse_import(file(QUESTION, {**CALLED, "tool_outputs": [DENIED]}), "m")
    assert draft.messages[1].tool_outputs == [
        {"type": "function_call_output", "id": "c", "name": "clock__now", **DENIED}
    ]
    assert parse_import(file(QUESTION, CALLED), "m").messages[1].tool_outputs is None


@pytest.mark.parametrize(
    "outputs",
    [
        [{**DENIED, "call_id": "other"}],
        [DENIED, DENIED],
        [{**DENIED, "output": "x" * (MAX_ANSWER_BYTES + 1)}],
        [{**DENIED, "status": "awaiting_consent"}],
        [{**DENIED, "status": "in_progress"}],
    ],
)
def test_outputs_are_of_calls_of_their_message_and_over(outputs: list[dict[str, Any]]) -> None:
    error = refusal(file(QUESTION, {**CALLED, "tool_outputs": outputs}))
    assert (error.param or "").startswith("messages[1].tool_outputs")


def test_what_clients_have_brought_or_deleted_comes_back() -> None:
    told = [{**QUESTION, "id": role, "role": role} for role in ("system", "developer")]
    gone = {**QUESTION, "content": [{"type": "text", "text": ""}], "redacted": ["message"]}
    again = {**ANSWER, "id": "b", "parent_id": "a"}
    messages = parse_import(file(*told, gone, ANSWER, again), "m").messages
    roles = [message.role for message in messages]
    assert roles == ["system", "developer", "user", "assistant", "assistant"]
    assert [message.redacted for message in messages[1:4]] == [None, ["message"], None]
