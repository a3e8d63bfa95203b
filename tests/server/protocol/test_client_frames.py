"""`parse`: frames from text, every refusal with its code, and never another exception."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from server.protocol.client_frames import (
    MAX_CHOICES,
    MAX_DEPTH,
    MAX_INTEGER,
    MAX_OUTPUT_BYTES,
    TYPES,
    CancelResponse,
    CreateResponse,
    CreateSession,
    FrameError,
    Ping,
    Settings,
    SubscribeSession,
    UpdateSession,
    decode_object,
    parse,
)
from server.protocol.errors import ApiError
from tests.end_to_end.oracle import bad_input

SESSION = "ses_" + "A" * 22
MESSAGE = "msg_" + "A" * 22
CREATE = {"type": "response.create", "session_id": SESSION, "idempotency_key": "k", "input": "hi"}
MAX_MESSAGE_CHARACTERS = 256 * 1024


def parse_fields(**fields: Any) -> Any:
    return parse(json.dumps(fields))


def refusal(text: str) -> ApiError:
    with pytest.raises(ApiError) as raised:
        parse(text)
    return raised.value


def test_every_type_of_the_protocol_has_a_frame() -> None:
    assert parse('{"type":"ping","t":5}') == Ping(t=5)
    assert parse('{"type":"stop"}') == parse('{"type":"response.cancel"}') == CancelResponse()
    assert set(TYPES) >= {"session.create", "response.create", "response.resume", "client.state"}


def test_a_message_is_a_string_or_parts() -> None:
    assert parse_fields(**CREATE).text == "hi"
    parts = [{"type": "input_text", "text": text} for text in ("a", "b")]
    assert parse_fields(**{**CREATE, "input": parts}).text == "ab"


def test_defaults_are_those_of_the_protocol() -> None:
    frame = parse_fields(type="session.subscribe", session_id=SESSION)
    assert frame == SubscribeSession(session_id=SESSION, limit=50, observe=False, responses=[])
    create = parse_fields(**CREATE)
    assert isinstance(create, CreateResponse)
    assert (create.on_busy, create.parent_id, create.settings) == ("reject", UNSET, Settings())


def test_unknown_fields_are_ignored_at_the_top_and_refused_in_settings() -> None:
    assert parse('{"type":"ping","t":1,"priority":9,"__class__":"x"}') == Ping(t=1)
    error = refusal(json.dumps({**CREATE, "settings": {"n": 5}}))
    assert (error.code, error.param) == ("invalid_field", "settings")


def test_the_last_of_duplicate_keys_counts() -> None:
    assert parse('{"type":"stop","t":1,"type":"ping","t":2}') == Ping(t=2)


def test_null_means_not_given() -> None:
    frame = parse_fields(type="session.update", session_id=SESSION, title=None, settings=None)
    assert frame == UpdateSession(session_id=SESSION)
    assert parse_fields(**CREATE, settings={"top_p": None}).settings == Settings()


def test_a_null_seed_is_kept_because_it_asks_for_another_one() -> None:
    assert parse_fields(**CREATE, settings={"seed": None}).settings.given() == {"seed": None}
    assert Settings().given() == {}


@pytest.mark.parametrize("system", ["x" * 32_769, "ö" * 16_385, "\x01" * 20_000])
def test_a_system_text_is_counted_in_bytes_and_with_its_escapes(system: str) -> None:
    error = refusal(json.dumps({**CREATE, "settings": {"system": system}}))
    assert (error.code, error.param) == ("invalid_field", "settings.system")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "hi", "regenerate_of": MESSAGE}, "regenerate_of"),
        ({"regenerate_of": MESSAGE, "continue_of": MESSAGE}, "continue_of"),
        ({"regenerate_of": MESSAGE, "parent_id": MESSAGE}, "parent_id"),
        ({"continue_of": MESSAGE, "parent_id": None}, "parent_id"),
    ],
)
def test_a_response_has_exactly_one_purpose(fields: dict[str, Any], param: str) -> None:
    error = refusal(json.dumps({**CREATE, "input": None, **fields}))
    assert (error.code, error.param) == ("invalid_field", param)


def test_what_to_do_without_viewers_is_a_word_or_a_time() -> None:
    for wish in ("continue", {"stop_after_s": 30}):
        settings = parse_fields(**CREATE, settings={"on_no_viewers": wish}).settings
        assert settings.given() == {"on_no_viewers": wish}
    wrong = {**CREATE, "settings": {"on_no_viewers": {"stop_after_s": 0}}}
    assert refusal(json.dumps(wrong)).param == "settings.on_no_viewers.stop_after_s"


@pytest.mark.parametrize("bad", bad_input.FRAMES, ids=lambda bad: f"{bad.row} {bad.text[:40]!r}")
def test_bad_input_is_refused(bad: bad_input.BadFrame) -> None:
    if bad.code in ("model_not_found", "forbidden"):
        return  # known only to the server
    error = refusal(bad.text.replace("$session", SESSION))
    assert error.code == bad.code
    if bad.param is not None:
        assert error.param is not None
        assert error.param.partition("[")[0] == bad.param
    assert len(error.message) < 150


def test_the_limits_themselves_are_accepted() -> None:
    least: dict[str, Any] = {
        "temperature": 0,
        "top_p": 1e-9,
        "top_k": -1,
        "min_p": 0,
        "max_output_tokens": 1,
        "seed": 0,
        "stop": [],
        "repetition_penalty": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": -2,
        "system": "",
        "logprobs": 0,
    }
    most: dict[str, Any] = {
        "temperature": 2,
        "top_p": 1,
        "top_k": 1000,
        "min_p": 1,
        "max_output_tokens": 16_384,
        "seed": MAX_INTEGER,
        "stop": ["x" * 64] * 4,
        "repetition_penalty": 10,
        "presence_penalty": 2,
        "frequency_penalty": 2,
        "system": "x" * 32 * 1024,
        "logprobs": 5,
    }
    for values in (least, most):
        assert parse_fields(**CREATE, settings=values).settings == Settings(**values)


def test_nesting_and_integers_are_accepted_up_to_their_limits() -> None:
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert decode_object('{"a":' + inner + "}")
    assert decode_object(f'{{"a":{MAX_INTEGER},"b":-{MAX_INTEGER},"c":1.5e300}}')
    brackets_in_a_string = json.dumps({"a": "[" * 1000 + '\\"' + "{" * 1000})
    assert decode_object(brackets_in_a_string)


def test_a_title_and_a_key_are_as_long_as_they_may_be() -> None:
    frame = parse_fields(type="session.create", idempotency_key="k" * 128, title="t" * 200)
    assert isinstance(frame, CreateSession)
    error = refusal(
        json.dumps({"type": "session.create", "idempotency_key": "k", "title": "t" * 201})
    )
    assert (error.code, error.param) == ("invalid_field", "title")


def test_an_error_carries_the_event_id_of_its_frame() -> None:
    error = refusal('{"type":"nonsense","event_id":"e1"}')
    assert isinstance(error, FrameError)
    assert error.event_id == "e1"
    for unusable in ('"' + "x" * 65 + '"', "5", "null", "{}"):
        error = refusal(f'{{"type":"nonsense","event_id":{unusable}}}')
        assert isinstance(error, FrameError)
        assert error.event_id is None


def test_a_field_name_that_looks_like_a_path_does_not_become_one() -> None:
    settings = {"x - at `$.idempotency_key": 1}
    assert refusal(json.dumps({**CREATE, "settings": settings})).param == "settings"


# ---- any input at all ---------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([SESSION, "resp_" + "A" * 33, "input_text", "k", "cancel"])
)
names = st.sampled_from(
    sorted({name for kind in TYPES.values() for name in kind.__struct_fields__} | {"type", "text"})
) | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)
)
frames = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(sorted(TYPES)),
    st.dictionaries(names, values, max_size=8),
)


def parses_or_refuses(text: str) -> None:
    try:
        frame = parse(text)
    except ApiError as error:
        assert error.code != "internal"
        assert len(error.message) < 150
    else:
        assert type(frame) in TYPES.values()


@given(st.text())
@example('{"type":"ping","t":1e400}')
@example('{"type":"ping","t":0.00000000000000000000000000000001e9999999999999}')
@example('{"type":"ping","t":--1,"x":1-1,"y":1.2.3}')
def test_any_text_is_parsed_or_refused(text: str) -> None:
    parses_or_refuses(text)


@given(frames)
def test_any_object_is_parsed_or_refused(fields: dict[str, Any]) -> None:
    parses_or_refuses(json.dumps(fields))


@given(frames, st.data())
def test_a_frame_with_a_byte_changed_is_parsed_or_refused(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(fields)
    place = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 3))
    parses_or_refuses(text[:place] + data.draw(st.text(max_size=3)) + text[place + length :])


@given(st.text(alphabet='\ud800\udfff{}[]":,0123456789.eE+-\\u\0 ntf', max_size=40))
def test_text_that_is_no_unicode_is_refused(text: str) -> None:
    parses_or_refuses(text)


PATTERNS = ('"', "\\", '"\\', "[", "{", '{"', '{"":', "1", "1.", "1e", "-", "-1", "0.", "\\u", ",")


@given(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4), st.sampled_from(PATTERNS))
@settings(max_examples=150)
def test_the_longest_message_takes_no_time(parts: list[str], last: str) -> None:
    pattern = "".join(parts)
    text = '{"a":' + pattern * (MAX_MESSAGE_CHARACTERS // len(pattern)) + last
    before = time.process_time()
    parses_or_refuses(text[:MAX_MESSAGE_CHARACTERS])
    assert time.process_time() - before < 1.0  # 0.05 s when it is linear, hours when it is not


@pytest.mark.parametrize(
    "output",
    [
        {"type": "text"},
        {"type": "json"},
        {"type": "json_schema", "schema": {"type": "object", "x": [1, 2.5, None]}},
        {"type": "regex", "pattern": "[a-z]+"},
        {"type": "choice", "choices": ["a", "b"]},
        {"type": "grammar", "grammar": 'start: "a"'},
    ],
)
def test_an_output_is_stored_as_it_was_given(output: dict[str, Any]) -> None:
    frame = parse_fields(**CREATE, settings={"output": output})
    assert frame.settings.given() == {"output": output}


@pytest.mark.parametrize(
    ("output", "param"),
    [
        ({"type": "yaml"}, "settings.output"),
        ({}, "settings.output"),
        ("json", "settings.output"),
        ({"type": "json", "schema": {}}, "settings.output"),
        ({"type": "json_schema", "schema": []}, "settings.output.schema"),
        ({"type": "json_schema"}, "settings.output"),
        ({"type": "regex", "pattern": ""}, "settings.output.pattern"),
        ({"type": "choice", "choices": []}, "settings.output.choices"),
        ({"type": "choice", "choices": ["a"] * (MAX_CHOICES + 1)}, "settings.output.choices"),
        ({"type": "json_schema", "schema": {"x": "y" * MAX_OUTPUT_BYTES}}, "settings.output"),
    ],
)
def test_a_wrong_output_is_refused_with_its_place(output: Any, param: str) -> None:
    error = refusal(json.dumps({**CREATE, "settings": {"output": output}}))
    assert error.code == "invalid_field"
    assert error.param is not None and error.param.startswith(param)


TOOL: dict[str, Any] = {"type": "function", "name": "clock"}


CLOCK = {"type": "mcp", "server_label": "clock"}


def test_servers_of_tools_are_stored_as_they_were_given() -> None:
    some = {"type": "mcp", "server_label": "notes", "allowed_tools": ["read"]}
    settings = {"tools": [CLOCK, TOOL, some]}
    assert parse_fields(**CREATE, settings=settings).settings.given() == settings


def test_tools_are_stored_as_they_were_given() -> None:
    tool = {**TOOL, "description": "now", "parameters": {"type": "object", "properties": {}}}
    settings = {"tools": [tool, {**TOOL, "name": "other"}], "tool_choice": "none"}
    assert parse_fields(**CREATE, settings=settings).settings.given() == settings


@pytest.mark.parametrize(
    "settings",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "name": "clock"}},
        {"thinking_token_budget": 0},
    ],
)
def test_what_holds_an_answer_is_stored_as_it_was_given(settings: dict[str, Any]) -> None:
    assert parse_fields(**CREATE, settings=settings).settings.given() == settings


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "settings.tools"),
        ({"tools": [{**TOOL, "name": str(n)} for n in range(65)]}, "settings.tools"),
        ({"tools": [{**TOOL, "description": "x" * 2**15}]}, "settings.tools"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "settings.tools[0].name"),
        ({"tools": [{**TOOL, "type": "web"}]}, "settings.tools[0].type"),
        ({"tools": [{**TOOL, "strict": True}]}, "settings.tools[0]"),
        ({"tools": [{**TOOL, "server_label": "mine"}]}, "settings.tools[0]"),
        ({"tools": [{**TOOL, "consent": "never"}]}, "settings.tools[0]"),
        ({"tools": [CLOCK, CLOCK]}, "settings.tools"),
        ({"tools": [{**CLOCK, "allowed_tools": []}]}, "settings.tools[0].allowed_tools"),
        ({"tools": [{**CLOCK, "server_url": "http://x"}]}, "settings.tools[0]"),
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "settings.tools[0].parameters"),
        (
            {"tools": [{**TOOL, "parameters": {"properties": {"a": 1}}}]},
            "settings.tools[0].parameters",
        ),
        ({"tool_choice": "any"}, "settings.tool_choice"),
        ({"tool_choice": {"type": "function"}}, "settings.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "a b"}}, "settings.tool_choice.name"),
        ({"tool_choice": {"type": "mcp", "name": "clock"}}, "settings.tool_choice.type"),
        ({"thinking_token_budget": -1}, "settings.thinking_token_budget"),
        ({"thinking_token_budget": 16385}, "settings.thinking_token_budget"),
    ],
)
def test_wrong_tools_are_refused_with_their_place(settings: dict[str, Any], param: str) -> None:
    error = refusal(json.dumps({**CREATE, "settings": settings}))
    assert (error.code, error.param) == ("invalid_field", param)


def test_outputs_of_tools_are_an_input_that_may_be_empty() -> None:
    item = {"type": "function_call_output", "call_id": "c", "output": ""}
    frame = parse_fields(**{**CREATE, "input": [item]})
    assert [each.call_id for each in frame.outputs] == ["c"]
    long = [{**item, "output": "x" * 2**17}, {**item, "call_id": "d", "output": "y"}]
    assert refusal(json.dumps({**CREATE, "input": long})).code == "message_too_large"
    many = [{**item, "call_id": str(number)} for number in range(65)]
    assert refusal(json.dumps({**CREATE, "input": many})).param == "input"
    queued = {"type": "queue.add", "session_id": SESSION, "idempotency_key": "k", "input": [item]}
    assert refusal(json.dumps(queued)).code == "invalid_field"
