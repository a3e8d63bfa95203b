"""Every field that OpenAI's client knows of these routes: it works, changes nothing, or is refused.

The tables are held against the client's own types, and against docs/http.md.
"""

import re
from typing import Any

from server.api.items.input_items import KINDS
from tests.end_to_end.sdks.environment import request_fields
from tests.helpers.root import ROOT
from tests.server.api.conversations.house import PATH, House

WORKS, NOTHING, REFUSED = "works", "changes nothing", "is refused"
QUESTION = {"type": "message", "role": "user", "content": "Hello"}
ANSWER = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}],
    "status": "completed",
}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}

# Of each type: an item, what stands before it, and its fields with a value each.
Field = tuple[str, Any, str]
ITEMS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[Field]]] = {
    "responses.easy_input_message_param:EasyInputMessageParam": (
        QUESTION,
        [],
        [
            ("role", "developer", WORKS),
            ("role", "assistant", WORKS),
            ("role", "critic", REFUSED),
            ("content", "Other", WORKS),
            ("content", [{"type": "input_text", "text": "Other"}], WORKS),
            ("content", [{"type": "input_image", "image_url": "x"}], REFUSED),
            ("content", [{"type": "input_file", "file_id": "x"}], REFUSED),
            ("content", [{"type": "input_audio"}], REFUSED),
            ("type", None, NOTHING),
            ("phase", "commentary", NOTHING),
        ],
    ),
    "responses.response_output_message_param:ResponseOutputMessageParam": (
        ANSWER,
        [],
        [
            ("id", "msg_1", NOTHING),
            ("role", "user", WORKS),
            ("content", [{"type": "refusal", "refusal": "No."}], WORKS),
            ("content", [{"type": "output_text"}], REFUSED),
            ("status", "incomplete", WORKS),
            ("status", "done", REFUSED),
            ("type", "message", NOTHING),
            ("phase", "final_answer", NOTHING),
        ],
    ),
    "responses.response_reasoning_item_param:ResponseReasoningItemParam": (
        THOUGHT,
        [],
        [
            ("id", "rs_1", NOTHING),
            ("summary", [{"type": "summary_text", "text": "Short."}], NOTHING),
            ("content", [{"type": "reasoning_text", "text": "Long."}], WORKS),
            ("content", [{"type": "input_image"}], REFUSED),
            ("encrypted_content", "x", NOTHING),
            ("status", "completed", NOTHING),
            ("type", "reasoning", NOTHING),
        ],
    ),
    "responses.response_function_tool_call_param:ResponseFunctionToolCallParam": (
        CALL,
        [],
        [
            ("id", "fc_1", NOTHING),
            ("call_id", "c2", WORKS),
            ("name", "time", WORKS),
            ("arguments", '{"a": 1}', WORKS),
            ("status", "incomplete", WORKS),
            ("type", "function_call", NOTHING),
            ("async", False, NOTHING),
            ("async", True, REFUSED),
            ("namespace", "x", REFUSED),
            ("caller", {"type": "direct"}, NOTHING),
            ("caller", {"type": "program", "caller_id": "x"}, REFUSED),
        ],
    ),
    "responses.response_input_item_param:FunctionCallOutput": (
        OUTPUT,
        [CALL],
        [
            ("id", "fco_1", NOTHING),
            ("call_id", "c2", REFUSED),
            ("output", "sun", WORKS),
            ("output", [{"type": "input_text", "text": "sun"}], WORKS),
            ("output", [{"type": "input_file", "file_id": "x"}], REFUSED),
            ("name", "weather", NOTHING),
            ("status", "completed", NOTHING),
            ("type", "function_call_output", NOTHING),
            ("namespace", "x", REFUSED),
            ("caller", {"type": "direct"}, NOTHING),
            ("caller", {"type": "program", "caller_id": "x"}, REFUSED),
        ],
    ),
}
ROUTES = {
    "conversations.conversation_create_params:ConversationCreateParams": {"items", "metadata"},
    "conversations.conversation_update_params:ConversationUpdateParams": {"metadata"},
    "conversations.item_create_params:ItemCreateParams": {"items", "include"},
    "conversations.item_list_params:ItemListParams": {"after", "include", "limit", "order"},
    "conversations.item_retrieve_params:ItemRetrieveParams": {"conversation_id", "include"},
}
ALL_ITEMS = "responses.response_input_item_param:ResponseInputItemParam"
CONTENTS = (
    "responses.response_input_text_param:ResponseInputTextParam",
    "responses.response_output_text_param:ResponseOutputTextParam",
    "responses.response_output_refusal_param:ResponseOutputRefusalParam",
)


def section() -> str:
    """What docs/http.md says of these routes, without its examples."""
    text = (ROOT / "docs" / "http.md").read_text()
    return re.sub("```.*?```", "", text[text.index("### Conversations") :], flags=re.DOTALL)


async def added(house: House, *items: Any) -> tuple[int, Any]:
    """Status, and the last item as it is kept, without its id; or the refusal's param."""
    conversation = await house.made()
    path = f"{PATH}/{conversation}/items"
    status, body = await house.ask("POST", path, {"items": items})
    if status != 200:
        return status, body["error"]["param"]
    return status, {**body["data"][-1], "id": ""}


async def test_each_field_of_an_item_does_what_the_table_says(house: House) -> None:
    for kind, (item, before, fields) in ITEMS.items():
        status, plain = await added(house, *before, item)
        assert status == 200, (kind, plain)
        for name, value, expected in fields:
            status, found = await added(house, *before, {**item, name: value})
            where = f"items[{len(before)}].{name}"
            seen = WORKS if found != plain else NOTHING
            if status != 200:
                assert status == 400 and found.startswith(where), (kind, name, value, found)
                seen = REFUSED
            assert seen == expected, (kind, name, value, found)


async def test_the_tables_have_every_field_of_openais_client_and_the_page_names_them() -> None:
    known = request_fields(*ITEMS, *ROUTES, *CONTENTS)
    for kind, (_, _, fields) in ITEMS.items():
        assert {name for name, _, _ in fields} == set(known[kind]), kind
    for kind, names in ROUTES.items():
        assert names == set(known[kind]), kind
    named = set(re.findall(r"`([^`]+)`", section()))
    for kind, names_of_kind in known.items():
        missing = set(names_of_kind) - named - {"text", "type", "conversation_id"}
        assert missing == set(), (kind, missing)


async def test_items_of_every_other_type_are_refused(house: House) -> None:
    types = set(request_fields(ALL_ITEMS)[ALL_ITEMS])
    assert KINDS.keys() < types and len(types) > 20
    for name in types - KINDS.keys():
        assert await added(house, {**QUESTION, "type": name}) == (400, "items[0].type"), name
