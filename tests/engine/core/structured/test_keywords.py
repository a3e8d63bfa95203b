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
from tests.engine.helpers.forms.documents import accepts
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
# Of the schemas above: documents that they allow, and documents that they forbid.
DOCUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "type": (['"a"', "null"], ["1", "[]", "{}", "true"]),
    "enum": (["1", '"a"', "null"], ["2", '"b"', "false", "[1]"]),
    "const": (['{"a": 1}'], ['{"a": 2}', "{}", '{"a": 1, "b": 1}']),
    "$ref": (["[[], [[]]]", "1"], []),
    "$defs": (["null"], ["0"]),
    "definitions": (["null"], ["0"]),
    "$anchor": (["null"], ["0"]),
    "$id": (["null"], ["0"]),
    "allOf": (['"a"'], ['""', "1"]),
    "anyOf": (['""', "null"], ["1"]),
    "oneOf": (['""', "null"], ["1"]),
    "properties": (['{"a": 1}', "{}", "3"], []),
    "required": (['{"a": 1}', '{"a": 1, "b": 2}'], ["{}", '{"b": 1}']),
    "additionalProperties": (["{}", '{"a": ""}'], ['{"a": 1}', '{"a": "", "b": 1}']),
    "patternProperties": (['{"ab": null}', '{"b": 1}'], ['{"ab": 1}', '{"a": ""}']),
    "minProperties": (['{"a": 1}'], ["{}"]),
    "maxProperties": (["{}", '{"a": 1, "b": 1, "c": 1}'], ['{"a": 1, "b": 1, "c": 1, "d": 1}']),
    "items": (["[]", "[null, null]"], ["[1]", "[null, 1]"]),
    "prefixItems": (["[]", "[null, 1]"], ["[1]"]),
    "additionalItems": (["[]", "[null]"], ["[1]", "[null, null]"]),
    "minItems": (["[1, 1]"], ["[]", "[1]"]),
    "maxItems": (["[]", "[1, 1]"], ["[1, 1, 1]"]),
    "minLength": (['"ab"', '"🐲🐲"', '"\\n\\n"'], ['""', '"a"', '"🐲"', '"\\n"']),
    "maxLength": (['""', '"🐲🐲"', '"\\n\\n"'], ['"abc"', '"🐲🐲🐲"']),
    "pattern": (['"a"', '"aa"'], ['""', '"ab"', '"a\\n"']),
    "minimum": (["1.5", "2", "10.25"], ["1.4", "0", "-2"]),
    "maximum": (["5", "-99"], ["6", "55"]),
    "exclusiveMinimum": (["2", "100"], ["1", "0"]),
    "exclusiveMaximum": (["0.99", "-1"], ["1", "1.0", "1.01"]),
    "multipleOf": (["0", "3", "-9", "3333"], ["1", "3334"]),
}
REFUSED: dict[str, Any] = {
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$dynamicAnchor": {"$dynamicAnchor": "a"},
    "$recursiveRef": {"$recursiveRef": "#"},
    "$recursiveAnchor": {"$recursiveAnchor": True},
    "oneOf": {"oneOf": [{"type": "string"}, {"minLength": 3}]},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 1}},
    "then": {"if": {"type": "string"}, "then": {"minLength": 1}},
    "else": {"if": {"type": "string"}, "else": {"type": "null"}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {}}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "null"}},
    "minContains": {"type": "array", "contains": {}, "minContains": 2},
    "maxContains": {"type": "array", "contains": {}, "maxContains": 2},
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
def test_a_keyword_of_the_left_side_is_taken_and_held(
    tokenizer: llguidance.LLTokenizer, keyword: str
) -> None:
    verdict = prove(Source("json", json.dumps(TAKEN[keyword])), tokenizer)
    assert (verdict.problem, verdict.warnings) == ("", [])
    matcher = compile_source(Source("json", json.dumps(TAKEN[keyword])), tokenizer)
    held, forbidden = DOCUMENTS[keyword]
    assert [text for text in held if not accepts(tokenizer, matcher, text)] == []
    assert [text for text in forbidden if accepts(tokenizer, matcher, text)] == []


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
