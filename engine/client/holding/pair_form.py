"""`PairForm`: a call that is a name and pairs, each value as the parser reads it into JSON.

A value is a text as it is where the schema has it a string, and JSON where it has something else.
Which of the two the parser knows by `type` alone, so what has none is held only if it is a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.client.holding.lark import ANY, SPACES, Lark, literal, one_of
from engine.client.holding.schemas import (
    ANNOTATIONS,
    DEFINITIONS,
    Without,
    object_schema,
    refused,
    with_definitions,
)
from engine.client.parsing.pair_calls import PairCalls, schema_types

_OF_OBJECT = {*ANNOTATIONS, *DEFINITIONS, "additionalProperties", "properties", "required", "type"}
_OF_TEXT = {"enum", "const", "type"}
_LENGTHS = {"minLength", "maxLength"}
_UNIONS = ("anyOf", "oneOf")
_SCALARS = {  # as the parser reads them: a number beyond these would be a text
    "integer": "/-?(0|[1-9][0-9]{0,17})/",
    "number": r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?/",
    "boolean": "/true|false/",
    "null": "/null/",
}


class PairForm:
    """What stands between the marks of a call of the tool `name`. Raises `ValidationError`."""

    def __init__(self, lark: Lark, syntax: PairCalls, name: str) -> None:
        self._lark = lark
        self._syntax = syntax
        self._name = name
        self._is_ended_by_text = lark.token(syntax.value_ends) is None

    def body(self, schema: Mapping[str, Any]) -> str:
        lark, syntax = self._lark, self._syntax
        parts: list[str] = []
        if syntax.has_name:
            if syntax.name_begins:
                parts.append(lark.space())
            parts.append(lark.text(syntax.name_begins + self._name + (syntax.name_ends or "\n")))
        parts += [*self._pairs(schema), lark.space()]
        if syntax.after:
            parts += [lark.text(syntax.after), lark.space()]
        return lark.rule(" ".join(parts))

    def _pairs(self, schema: Mapping[str, Any]) -> list[str]:
        """Those of an object, in the order of its properties."""
        whole = object_schema(self._name, schema)
        if unknown := sorted(whole.keys() - _OF_OBJECT):
            raise refused(self._name, f"say {unknown[0]!r}, which pairs of values do not show")
        properties = whole.get("properties", {})
        required = whole.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise refused(self._name, "are no schema")
        missing = [key for key in required if key not in properties]
        if missing and whole.get("additionalProperties", True) is not True:
            raise refused(self._name, f"require {missing[0]!r}, of which they say nothing")
        pairs = []
        for key, value in [*properties.items(), *((key, {}) for key in missing)]:
            pair = self._lark.rule(self._pair(key, value, whole))
            pairs.append(pair if key in required else f"{pair}?")
        return pairs

    def _pair(self, key: str, schema: Any, whole: Mapping[str, Any]) -> str:
        lark, syntax = self._lark, self._syntax
        if not key.strip() or key != key.strip() or syntax.key_ends in key:
            raise refused(self._name, f"have the name {key!r}, which the model cannot write")
        begin = [lark.space(), lark.text(syntax.key_begins + key + syntax.key_ends)]
        if syntax.value_begins:
            begin += [lark.space(), lark.text(syntax.value_begins)]
        return f"{' '.join(begin)} {self._value(key, schema, whole)}"

    def _value(self, key: str, schema: Any, whole: Mapping[str, Any]) -> str:
        """A value and its end."""
        schema = {} if schema is True else schema
        if not isinstance(schema, Mapping):
            raise refused(self._name, f"allow no {key!r}")
        types = schema_types(schema)
        if set(types) <= {"string"}:
            return self._text(self._of_text(key, schema, types))
        if "string" in types:  # a text that is read as one of the others, if it is one
            if not _is_plain(schema):
                problem = f"have {key!r} either a text or not, with more said of it"
                raise refused(self._name, problem)
            return self._text(ANY)
        space = literal("\n") if self._syntax.strip == "newline" else ""
        if self._syntax.strip == "space":
            space = self._lark.space()
        end = self._lark.text(self._syntax.value_ends)
        return f"{space} {self._json(schema, types, whole)} {space} {end}".strip()

    def _json(
        self, schema: Mapping[str, Any], types: Sequence[str], whole: Mapping[str, Any]
    ) -> str:
        if _is_plain(schema) and set(types) <= _SCALARS.keys():
            return one_of([self._lark.lexeme(_SCALARS[each]) for each in dict.fromkeys(types)])
        alone = with_definitions(schema, whole)
        if self._is_ended_by_text and not set(types) <= _SCALARS.keys():
            alone = Without(self._syntax.value_ends, self._name).whole(alone)
        return self._lark.json(alone)

    def _of_text(self, key: str, schema: Mapping[str, Any], types: Sequence[str]) -> str:
        """What a text may be, as the body of a lexeme."""
        said = schema.keys() - ANNOTATIONS
        if "enum" in said or "const" in said:
            given = schema["enum"] if "enum" in said else [schema["const"]]
            choices = [each for each in given if self._can_be(each)]
            if said - _OF_TEXT or not choices or not all(isinstance(each, str) for each in given):
                raise refused(self._name, f"have values of {key!r} that the model cannot write")
            return self._around(one_of([literal(each) for each in choices]))
        if _is_plain(schema) and (types or not said):
            return ANY
        if not types or said - {"type"} - _LENGTHS:
            problem = (
                f"say more of {key!r} than is held in a text: its type, lengths and values are"
            )
            raise refused(self._name, problem)
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        lengths = f"/(?s:.{{{json.dumps(least)},{json.dumps(most) if most != '' else ''}}})/"
        if self._syntax.strip == "space":
            lengths = f"({lengths} & /(?s:(\\S(.*\\S)?)?)/)"
        return self._around(lengths)

    def _around(self, content: str) -> str:
        """With the white space that the parser takes away."""
        return f"({SPACES} {content} {SPACES})" if self._syntax.strip == "space" else content

    def _can_be(self, value: Any) -> bool:
        is_whole = self._syntax.strip != "space" or str(value).strip() == value
        return is_whole and not (self._is_ended_by_text and self._syntax.value_ends in str(value))

    def _text(self, content: str) -> str:
        """A text and its end, which does not stand in it."""
        lark, syntax = self._lark, self._syntax
        space = literal("\n") if syntax.strip == "newline" else ""
        if not self._is_ended_by_text:
            value = lark.lexeme(f"{content} {space}".strip())
            return f"{space} {value} {lark.text(syntax.value_ends)}".strip()
        end = literal(syntax.value_ends)
        whole = f"({content} {space} {end}) & ~({ANY} {end} /(?s:.+)/)"
        return f"{space} {lark.lexeme(whole)}".strip()


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether nothing but types is said."""
    said = schema.keys() - ANNOTATIONS - {"type", "nullable", *_UNIONS}
    branches = [each for key in _UNIONS for each in schema.get(key) or ()]
    return not said and all(isinstance(each, Mapping) and _is_plain(each) for each in branches)
