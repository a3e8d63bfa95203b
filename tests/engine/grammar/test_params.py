"""What `StructuredOutputsParams` takes and refuses, and what is compiled of it."""

import json
from typing import Any

import pytest

from engine import SamplingParams, StructuredOutputsParams
from engine.errors import ValidationError
from engine.grammar.params import MAX_GRAMMAR_BYTES, as_sent

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"json": '{"type": "null"}'}, "json", '{"type": "null"}'),
        ({"json": SCHEMA}, "json", json.dumps(SCHEMA)),
        ({"json": False}, "json", '{"not": {}}'),
        ({"json_object": True}, "json", '{"type": "object"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["é", '"']}, "choice", '["é", "\\""]'),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"structural_tag": "{}"}, "tags", "{}"),
    ],
)
def test_each_way_to_say_it_becomes_one_text(given: dict[str, Any], kind: str, text: str) -> None:
    assert StructuredOutputsParams(**given).source() == (kind, text)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "exactly one of"),
        ({"json_object": False}, "exactly one of"),
        ({"regex": "a", "choice": ["a"]}, "exactly one of"),
        ({"json": "{"}, "structured_outputs.json is no JSON"),
        ({"json": "[]"}, "must be a schema"),
        ({"json": {"const": float("nan")}}, "is no JSON"),
        ({"json": json.dumps({"not": {}} | {"x": "y" * MAX_GRAMMAR_BYTES})}, "at most"),
        ({"regex": 5}, "structured_outputs.regex must be a string"),
        ({"regex": "x" * (MAX_GRAMMAR_BYTES + 1)}, "at most"),
        ({"regex": "\ud800"}, "is no text"),
        ({"choice": []}, "exactly one of|1 to"),
        ({"choice": [""]}, "not empty"),
        ({"choice": "yes"}, "list of strings"),
        ({"choice": ["a", 1]}, "list of strings"),
        ({"regex": "a", "disable_any_whitespace": 1}, "True or False"),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        StructuredOutputsParams(**given)


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(ValidationError, match="nested deeper"):
        StructuredOutputsParams(json=schema)


def test_whitespace_and_other_properties_are_said_in_the_schema() -> None:
    nested = {"properties": {"type": {"type": "object"}, "b": {"enum": [{"type": "object"}]}}}
    params = StructuredOutputsParams(
        json=nested,
        disable_any_whitespace=True,
        whitespace_pattern=" ?",
        disable_additional_properties=True,
    )
    assert json.loads(params.source()[1]) == {
        "properties": {
            "type": {"type": "object", "additionalProperties": False},
            "b": {"enum": [{"type": "object"}]},
        },
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False, "whitespace_pattern": " ?"},
    }


def test_it_is_part_of_the_parameters_and_is_copied_with_them() -> None:
    big = {"type": "integer", "maximum": 1 << 70}  # more than a message could hold
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=big))
    assert params.structured_outputs is not None
    sent = as_sent(params.structured_outputs)
    assert isinstance(sent.json, str) and json.loads(sent.json) == big
    copied = SamplingParams(structured_outputs=sent).clone()
    assert copied.structured_outputs == sent


def test_anything_else_in_its_place_is_refused() -> None:
    wrong: Any = {"json": "{}"}
    with pytest.raises(ValidationError, match="structured_outputs must be"):
        SamplingParams(structured_outputs=wrong)
