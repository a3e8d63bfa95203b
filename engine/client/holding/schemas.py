"""Schemas of arguments: what must be said of one before its JSON can stand in a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from engine.errors import ValidationError

ANNOTATIONS = frozenset(
    ("$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "title")
)
DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *DEFINITIONS)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalItems", "additionalProperties")
_ANYTHING = "parley-anything"  # among the definitions
_STRUCTURE = re.compile(r'[\s{}\[\]":,\-+.\w\\]')  # what JSON has outside of texts, or escapes with


def object_schema(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the arguments of a tool, which are an object. Raises `ValidationError`."""
    declared = schema.get("type", "object")
    if declared != "object" and not (isinstance(declared, list) and "object" in declared):
        raise refused(name, "must be those of an object")
    return {**schema, "type": "object"}


def refused(name: str, problem: str) -> ValidationError:
    """Why the arguments of a tool cannot be held to its schema."""
    return ValidationError(f"the parameters of the tool {name!r} {problem}", "tools", name)


def with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema that stands alone."""
    return {**schema, **{key: root[key] for key in DEFINITIONS if key in root}}


class Without:
    """Narrows schemas, so that what they describe has nowhere a certain text, nor its beginning.

    For JSON that a text ends which JSON may have. `name` is the tool's. Raises `ValidationError`.
    """

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        if _STRUCTURE.match(text):
            raise refused(name, f"have JSON in a place where {text!r} ends it")
        first, second = re.escape(text[0]), re.escape(text[1:2] or text[0])
        self._pattern = f"^[^{first}]*$"
        if first != second:  # the first may be there where the second does not follow
            self._pattern = f"^([^{first}]|{first}+[^{first}{second}])*{first}*$"

    def whole(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A schema that stands alone."""
        narrow: dict[str, Any] = self._narrow(schema)
        if _ANYTHING not in json.dumps(narrow):
            return narrow
        return {**narrow, "$defs": {**narrow.get("$defs", {}), _ANYTHING: self._anything()}}

    def _narrow(self, schema: Any) -> Any:
        if schema is True or schema == {}:
            return {"$ref": f"#/$defs/{_ANYTHING}"}
        if not isinstance(schema, Mapping):
            return schema
        if "pattern" in schema or "patternProperties" in schema:
            problem = f"have a pattern where {self._text!r} ends the value"
            raise refused(self._name, problem)
        narrow = {key: self._part(key, value) for key, value in schema.items()}
        if {"enum", "const", "$ref", "format"} & schema.keys():
            return narrow
        types = schema.get("type", ("string", "object", "array"))
        if "string" in types:
            narrow["pattern"] = self._pattern
        if "object" in types:
            others = narrow.pop("additionalProperties", {"$ref": f"#/$defs/{_ANYTHING}"})
            if others is not False and not narrow.get("properties"):
                narrow["patternProperties"] = {self._pattern: others}
            narrow["additionalProperties"] = (
                False  # a pattern would be of those that are named, too
            )
        if "array" in types and "items" not in schema:
            narrow["items"] = {"$ref": f"#/$defs/{_ANYTHING}"}
        return narrow

    def _part(self, key: str, value: Any) -> Any:
        if key in _MAPS and isinstance(value, Mapping):
            if key == "properties" and any(self._text[:2] in each for each in value):
                raise refused(self._name, f"have a name with {self._text!r}, which ends the value")
            return {each: self._narrow(one) for each, one in value.items()}
        if key in _LISTS and isinstance(value, list):
            return [self._narrow(each) for each in value]
        if key in _SINGLE:
            return self._narrow(value)
        if key == "enum" and isinstance(value, list):
            return [each for each in value if not self._is_in(each)]
        if key == "const" and self._is_in(value):
            raise refused(self._name, f"have a value with {self._text!r}, which ends it")
        return value

    def _is_in(self, value: Any) -> bool:
        return self._text in json.dumps(value, ensure_ascii=False)

    def _anything(self) -> dict[str, Any]:
        again = {"$ref": f"#/$defs/{_ANYTHING}"}
        return {
            "anyOf": [
                {"type": ["null", "boolean", "number"]},
                {"type": "string", "pattern": self._pattern},
                {"type": "array", "items": again},
                {
                    "type": "object",
                    "patternProperties": {self._pattern: again},
                    "additionalProperties": False,
                },
            ]
        }
