"""Calls that are pairs: each value fits its schema after it was read, at every end."""

from pathlib import Path
from typing import Any

import pytest

from engine.client.holding.call_form import call_form
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Grammar
from engine.errors import ValidationError
from tests.engine.client.holding.walks import Vocabulary

END = "</parameter>"
ANY_JSON = {"type": ["array", "object"]}
NODE = {
    "type": "object",
    "properties": {"s": {"type": "string"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["s"],
}
# Schemas of one value, and values as a model may write them, with what they are read as.
HELD: list[tuple[dict[str, Any] | bool, dict[str, Any]]] = [
    ({"type": "string"}, {"a\nb ": "a\nb ", "": "", "</paramete r>": "</paramete r>", "5": "5"}),
    (True, {"x": "x"}),
    ({"description": "any"}, {"x": "x"}),
    ({"type": "string", "minLength": 2, "maxLength": 3}, {"ab": "ab", "éé\n": "éé\n"}),
    ({"enum": ["on", " off "]}, {"on": "on", " off ": " off "}),
    ({"const": "é\n"}, {"é\n": "é\n"}),
    ({"type": "integer"}, {"-12": -12, "0": 0}),
    ({"type": "integer", "minimum": 5, "maximum": 20}, {"17": 17}),
    ({"type": "number"}, {"1.5": 1.5, "-3": -3}),
    ({"type": "boolean"}, {"true": True, "false": False}),
    ({"type": ["boolean", "null"]}, {"null": None, "true": True}),
    ({"type": "integer", "enum": [1, 3]}, {"3": 3}),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"x": "x", "null": None}),
    ({"type": ["string", "integer"]}, {"x": "x", "7": 7}),
    ({"type": "array", "items": {"type": "string"}}, {'["<a", "b</c"]': None, '["a<"]': ["a<"]}),
    ({"type": "array"}, {'[1, {"a": "b"}]': [1, {"a": "b"}]}),
    ({"type": "object"}, {'{"a": ["b", {}]}': {"a": ["b", {}]}}),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {'{"n": 1}': {"n": 1}}),
    ({"type": "array", "items": {"enum": ["x", END]}}, {'["x"]': ["x"]}),
    ({"type": "array", "items": {"$ref": "#/$defs/node"}}, {'[{"s": "a"}]': [{"s": "a"}]}),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"p": {"type": "string", "pattern": "^a"}}}, "'p'"),
    ({"properties": {"p": {"type": "string", "format": "date"}}}, "'p'"),
    ({"properties": {"p": {"enum": ["a", 1]}}}, "'p'"),
    ({"properties": {"p": {"enum": [END]}}}, "'p'"),
    ({"properties": {"p": {"$ref": "#/$defs/x"}}}, "'p'"),
    ({"properties": {"p": {"type": ["string", "integer"], "minimum": 2}}}, "'p'"),
    ({"properties": {"p": False}}, "'p'"),
    ({"properties": {" p": {}}}, "' p'"),
    ({"properties": {"p>": {}}}, "'p>'"),
    ({"properties": {}, "required": ["p"], "additionalProperties": False}, "'p'"),
    ({"minProperties": 1}, "minProperties"),
    ({"properties": {"p": {"type": "array", "items": {"pattern": "a"}}}}, "pattern"),
    ({"properties": {"p": {"type": "array", "items": {"const": END}}}}, END),
    ({"properties": {"p": {"type": "object", "properties": {END: {}}}}}, END),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(tmp_path_factory.mktemp("v"))


def tools(schema: dict[str, Any] | bool) -> dict[str, dict[str, Any]]:
    return {
        "f": {
            "type": "object",
            "properties": {"p": schema},
            "required": ["p"],
            "$defs": {"node": NODE},
        }
    }


def written(name: str, value: str) -> str:
    if name == "glm":
        return f"<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
    return f"<tool_call>\n<function=f>\n<parameter=p>\n{value}\n{END}\n</function>\n</tool_call>"


@pytest.mark.parametrize("name", ["qwen_xml", "glm"])
@pytest.mark.parametrize("number", range(len(HELD)))
def test_a_value_is_what_its_schema_says(name: str, number: int, vocabulary: Vocabulary) -> None:
    schema, values = HELD[number]
    format_, offered = FORMATS[name], tools(schema)
    matcher = vocabulary.matcher(format_, offered)
    for value, read in values.items():
        ids = vocabulary.encode(written(name, value))
        fits = matcher.validate_tokens(ids) == len(ids)
        if read is not None:
            assert fits, (value, vocabulary.tokenizer.decode(ids[: matcher.validate_tokens(ids)]))
            answer = vocabulary.read(format_, ids, offered)
            assert answer.calls == [("f", {"p": read})]
    num_read = 0
    for seed in range(10):
        ids = vocabulary.walk(matcher, seed) or []
        if ids:
            num_read += 1
            answer = vocabulary.read(format_, ids, offered)
            assert answer.are_valid and answer.text == ""
            for _, said in answer.calls:
                assert (said.keys() == {"p"} and END not in str(said)) or name == "glm"
    assert num_read


def test_no_text_that_ends_a_value_is_let_into_it(vocabulary: Vocabulary) -> None:
    for schema, value in (
        ({"type": "string"}, f"a{END}b"),
        ({"type": "string", "maxLength": 99}, f"a{END}b"),
        ({"type": "array"}, f'["a{END}b"]'),
        ({"type": "object"}, f'{{"a{END}b": 1}}'),
        ({"type": "array", "items": {"$ref": "#/$defs/node"}}, f'[{{"s": "{END}"}}]'),
    ):
        matcher = vocabulary.matcher(FORMATS["qwen_xml"], tools(schema))
        ids = vocabulary.encode(written("qwen_xml", value))
        assert matcher.validate_tokens(ids) < len(ids)


@pytest.mark.parametrize(("schema", "named"), REFUSED)
def test_what_pairs_cannot_be_held_to_is_refused_by_name(
    schema: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match="'f'") as caught:
        call_form(Grammar(FORMATS["qwen_xml"]), {"f": schema})
    assert caught.value.parameter == "tools" and named in str(caught.value)
