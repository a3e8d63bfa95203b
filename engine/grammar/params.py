"""`StructuredOutputsParams`: the form that an answer must have. The names are vLLM's.

One of them says what: a JSON schema, any JSON object, a regular expression, one of some texts, a
grammar, or structural tags. Whether it can be compiled only the core knows, which says so with the
request's end.
"""

import json
from typing import Any

import msgspec

from engine.errors import check_text, refuse
from engine.grammar.walk import change_schemas

MAX_GRAMMAR_BYTES = 256 * 1024  # of a schema, a pattern, a grammar, or all choices together
MAX_CHOICES = 10_000
MAX_SCHEMA_DEPTH = 64  # of lists and objects

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one of the first six is given. A wrong value raises `ValidationError`."""

    json: str | dict[str, Any] | bool | None = None  # a schema; as text it is read as JSON
    regex: str | None = None  # of the whole answer
    choice: list[str] | None = None
    grammar: str | None = None  # in Lark's way to write it, or in llama.cpp's, GBNF
    json_object: bool | None = None
    structural_tag: str | None = None  # JSON: `structures` with begin, schema, end; `triggers`
    # Of JSON: None may stand between what it consists of, or only what this pattern says.
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    disable_additional_properties: bool = False  # objects have none but those that are named
    begun: str = ""  # what the prompt has of the answer already, as its last text

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            names = ", ".join(KINDS)
            raise refuse("structured_outputs", given, f"must have exactly one of {names}")
        for name in ("regex", "grammar", "structural_tag", "whitespace_pattern", "begun"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise refuse(f"structured_outputs.{name}", value, "must be a string")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise refuse(
                    f"structured_outputs.{name}", getattr(self, name), "must be True or False"
                )
        if not isinstance(self.json_object, bool | None):
            problem = "must be True or False"
            raise refuse("structured_outputs.json_object", self.json_object, problem)
        if self.choice is not None:
            self.choice = _choices(self.choice)
        check_text("structured_outputs.begun", self.begun)
        self.source()

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        if self.json is not None:
            return "json"
        return next(name for name in KINDS if getattr(self, name))

    def source(self) -> tuple[str, str]:
        """What is to be compiled: "json", "regex", "choice", "grammar" or "tags", and its text."""
        match self.kind:
            case "json" | "json_object":
                schema = {"type": "object"} if self.json is None else self.json
                return "json", self._schema_text(schema)
            case "choice":
                text = json.dumps(self.choice, ensure_ascii=False)
                return "choice", _checked("choice", text)
            case "structural_tag":
                return "tags", _checked("structural_tag", self.structural_tag or "")
            case kind:
                return kind, _checked(kind, getattr(self, kind))

    def _schema_text(self, given: str | dict[str, Any] | bool) -> str:
        """The schema with what else is said of it, as llguidance takes it."""
        name = "structured_outputs.json"
        try:
            schema = json.loads(_checked("json", given)) if isinstance(given, str) else given
        except (ValueError, RecursionError) as error:
            raise refuse(name, given, f"is no JSON: {error}") from None
        if not isinstance(schema, dict | bool):
            raise refuse(name, given, "must be a schema: an object, True or False")
        _check_depth(schema)
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        if options := self._options():
            own = schema.get("x-guidance")
            schema = {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **options}}
        if self.disable_additional_properties:
            schema = change_schemas(schema, _closed)
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError) as error:
            raise refuse(name, type(schema).__name__, f"is no JSON: {error}") from None
        return _checked("json", text)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.disable_any_whitespace:
            options["whitespace_flexible"] = False
        if self.whitespace_pattern is not None:
            options["whitespace_pattern"] = self.whitespace_pattern
        return options


def as_sent(params: StructuredOutputsParams) -> StructuredOutputsParams:
    """With its schema as text: in a message numbers have 64 bits, in JSON as many as they want."""
    if isinstance(params.json, dict):
        text = json.dumps(params.json, ensure_ascii=False)
        return msgspec.structs.replace(params, json=text)
    return params


def _choices(given: object) -> list[str]:
    name = "structured_outputs.choice"
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise refuse(name, given, "must be a list of strings")
    if not given or len(given) > MAX_CHOICES:
        raise refuse(name, f"{len(given)} choices", f"must have 1 to {MAX_CHOICES}")
    if not any(given):
        raise refuse(name, given, "must have a text that is not empty")
    return list(given)


def _checked(kind: str, text: str) -> str:
    name = f"structured_outputs.{kind}"
    check_text(name, text)
    if not text:
        raise refuse(name, text, "must not be empty")
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise refuse(name, f"{len(text.encode())} bytes", f"has at most {MAX_GRAMMAR_BYTES} bytes")
    return text


def _check_depth(schema: object) -> None:
    waiting = [(schema, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            problem = f"is nested deeper than {MAX_SCHEMA_DEPTH}"
            raise refuse("structured_outputs.json", "a schema", problem)
        if isinstance(value, dict):
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list):
            waiting += [(each, depth + 1) for each in value]


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose objects have no other properties, unless it says that they have."""
    is_object = "properties" in schema or schema.get("type") == "object"
    if is_object and not {"additionalProperties", "patternProperties"} & schema.keys():
        return {**schema, "additionalProperties": False}
    return schema
