"""Which keywords of JSON Schema are held, and which refused by name, as docs/engine.md has it."""

import json
import re
from typing import Any

import llguidance
import pytest

from engine import demo_model
from engine.core.structured.compiling import compile_source
from engine.core.structured.frames import Source
from engine.core.structured.proof import prove
from tests.helpers.root import ROOT

TAKEN: dict[str, Any] = {
    "type": {"type": ["string", "null"]},
    "enum": {"enum": [1, "a", None]},
    "const": {"const": {"a": 1}},
    "$ref": {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    "$defs": {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"},
    "definitions": {"definitions": {"a": {"type": "null"}}, "$ref": "#/definitions/a"},
    "$anchor": {"$defs": {"a": {"$anchor": "x", "type": "null"}}, "$ref": "#x"},
    "$id": {"$id": "http://a/b", "type": "null"},
    "allOf": {"allOf": [{"type": "string"}, {"minLength": 1}]},
    "anyOf": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "null"}]},
    "properties": {"properties": {"a": {}}},
    "required": {"type": "object", "properties": {"a": {}}, "required": ["a"]},
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}},
    "patternProperties": {"type": "object", "patternProperties": {"^a": {"type": "null"}}},
    "minProperties": {"type": "object", "minProperties": 1},
    "maxProperties": {"type": "object", "maxProperties": 3},
    "items": {"type": "array", "items": {"type": "null"}},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "null"}]},
    "additionalItems": {"items": [{"type": "null"}], "additionalItems": False},
    "minItems": {"type": "array", "minItems": 2},
    "maxItems": {"type": "array", "maxItems": 2},
    "minLength": {"type": "string", "minLength": 2},
    "maxLength": {"type": "string", "maxLength": 2},
    "pattern": {"type": "string", "pattern": "^a+$"},
    "minimum": {"type": "number", "minimum": 1.5},
    "maximum": {"type": "integer", "maximum": 5},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 1},
    "exclusiveMaximum": {"type": "number", "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "multipleOf": 3},
}
REFUSED: dict[str, Any] = {
    "$dynamicRef": {"$dynamicRef": "#a"},
    "oneOf": {"oneOf": [{"type": "string"}, {"minLength": 3}]},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 1}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {}}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "null"}},
    "minContains": {"type": "array", "contains": {}, "minContains": 2},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
}
FORMATS = (
    *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
    "uri",
)
OTHER_FORMATS = ("iri", "uri-reference", "idn-email", "json-pointer", "regex", "uri-template")


@pytest.fixture(scope="module")
def tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer((demo_model() / "tokenizer.json").read_text())


@pytest.fixture(scope="module")
def table() -> list[list[str]]:
    """The rows of the page: what is held, and what is refused."""
    page = (ROOT / "docs" / "engine.md").read_text()
    _, _, rest = page.partition("| held | refused |\n|---|---|\n")
    return [row.strip("|").split(" | ") for row in rest.partition("\n\n")[0].splitlines()]


@pytest.mark.parametrize("keyword", TAKEN)
def test_a_keyword_of_the_left_side_is_taken(
    tokenizer: llguidance.LLTokenizer, keyword: str
) -> None:
    verdict = prove(Source("json", json.dumps(TAKEN[keyword])), tokenizer)
    assert (verdict.problem, verdict.warnings) == ("", [])


@pytest.mark.parametrize("keyword", REFUSED)
def test_one_of_the_right_side_is_refused_by_name(
    tokenizer: llguidance.LLTokenizer, keyword: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(keyword)):
        compile_source(Source("json", json.dumps(REFUSED[keyword])), tokenizer)


def test_a_format_is_one_of_those_named(tokenizer: llguidance.LLTokenizer) -> None:
    for name in FORMATS:
        compile_source(Source("json", json.dumps({"type": "string", "format": name})), tokenizer)
    for name in OTHER_FORMATS:
        source = Source("json", json.dumps({"type": "string", "format": name}))
        with pytest.raises(ValueError, match=name):
            compile_source(source, tokenizer)


def test_the_page_names_each_of_them_on_its_side(table: list[list[str]]) -> None:
    held, refused = (
        set(re.findall("`([^`]+)`", " ".join(side))) for side in zip(*table, strict=True)
    )
    assert held == {*TAKEN, *FORMATS, "format"}
    assert refused == {*REFUSED, "format", "false"}
