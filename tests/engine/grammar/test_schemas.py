"""What llguidance alone would let through of a schema is held, or refused by name."""

import json
from typing import Any

import llguidance
import pytest

from engine import demo_model
from engine.core.structured.compiling import compile_source
from engine.core.structured.frames import Source
from engine.core.structured.proof import prove
from tests.engine.helpers.forms.documents import accepts

INTEGER = {"properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer((demo_model() / "tokenizer.json").read_text())


def source(schema: Any) -> Source:
    return Source("json", json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "held", "forbidden"),
    [
        (INTEGER, ['{"a": 1}', '{"b": "x"}', '{"b\\n": 1}'], ['{"a": "x"}', '{"\\u0061": "x"}']),
        (
            {"properties": {"é\n": {"type": "null"}}},
            ['{"é\\n": null}', '{"é": 1}'],
            ['{"é\\n": 1}', '{"\\u00e9\\n": 1}', '{"é\\u000a": 1}'],
        ),
        (
            {"patternProperties": {"^🐲*$": {"type": "integer"}}},
            ['{"🐲": 1}', '{"x": ""}'],
            ['{"🐲": ""}', '{"\\ud83d\\udc32": ""}'],
        ),
        ({"const": "a\x01"}, ['"a\\u0001"'], ['"a"']),
        (
            {"format": "date"},
            ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"', '"2023-04-30"', "5"],
            ['"2023-02-29"', '"1900-02-29"', '"2023-04-31"', '"2023-13-01"', '"2023-00-10"'],
        ),
        (
            {"type": "string", "format": "date-time", "allOf": [{"pattern": "Z$"}]},
            ['"2024-02-29T23:59:59Z"', '"2024-02-28t00:00:00.5Z"'],
            ['"2023-02-29T23:59:59Z"', '"2024-02-29T23:58:60Z"', '"2024-02-29T23:59:59+00:00"'],
        ),
        ({"format": "time"}, ['"08:30:06Z"', '"08:30:06.283+01:00"'], ['"22:59:60Z"']),
        ({"type": "array", "uniqueItems": False}, ["[1, 1]"], ["1"]),
        ({"type": "object", "unevaluatedProperties": True}, ['{"a": 1}'], ["1"]),
        (
            {"type": "array", "minItems": 1.0, "maxItems": 2.0},
            ["[1]", "[1, 2]"],
            ["[]", "[1, 2, 3]"],
        ),
        ({"type": "object", "minProperties": 1}, ['{"a": 1}', '{"a": 1, "a": 2}'], ["{}"]),
        (
            {"minProperties": 2, "required": ["a"]},
            ['{"a": 1, "b": 2}'],
            ['{"a": 1}', '{"a": 1, "a": 2}', '{"b": 1, "b": 2}'],
        ),
    ],
    ids=lambda it: json.dumps(it)[:40] if isinstance(it, dict) else "",
)
def test_what_a_schema_forbids_cannot_be_said(
    tokenizer: llguidance.LLTokenizer, schema: Any, held: list[str], forbidden: list[str]
) -> None:
    matcher = compile_source(source(schema), tokenizer)
    assert [text for text in held if not accepts(tokenizer, matcher, text)] == []
    assert [text for text in forbidden if accepts(tokenizer, matcher, text)] == []


def test_the_schema_of_a_tag_is_held_as_well(tokenizer: llguidance.LLTokenizer) -> None:
    tag = {"begin": "<f>", "schema": INTEGER, "end": "</f>"}
    asked = {"structures": [tag], "triggers": ["<f"]}
    matcher = compile_source(Source("tags", json.dumps(asked)), tokenizer)
    assert accepts(tokenizer, matcher, 'so <f>{"a":1}</f>')
    assert not accepts(tokenizer, matcher, 'so <f>{"\\u0061":""}</f>')


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"items": {"minProperties": 3, "required": ["a", "a"]}}, "minProperties"),
        ({"properties": {"a": {"const": "\x01"}}}, "control characters"),
        ({"patternProperties": {"^a": {"enum": [{"x": ["\x7f"]}]}}}, "control characters"),
    ],
)
def test_what_cannot_be_held_is_refused_unless_it_is_lenient(
    tokenizer: llguidance.LLTokenizer, schema: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        compile_source(source(schema), tokenizer)
    verdict = prove(source({**schema, "x-guidance": {"lenient": True}}), tokenizer)
    assert verdict.problem == "" and named in " ".join(verdict.warnings)


def test_data_of_a_schema_is_no_schema(tokenizer: llguidance.LLTokenizer) -> None:
    names = {"minProperties": {"type": "null"}, "format": {"type": "null"}}
    for schema, text in (
        ({"const": {"minProperties": 5}}, '{"minProperties":5}'),
        ({"enum": [{"uniqueItems": False}]}, '{"uniqueItems":false}'),
        ({"properties": names, "default": {"minProperties": 9}}, '{"format":null}'),
    ):
        assert accepts(tokenizer, compile_source(source(schema), tokenizer), text)
