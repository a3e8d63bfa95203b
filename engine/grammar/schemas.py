"""What llguidance would let through of a JSON schema: said so that it holds it, or refused by name.

The official test suite of JSON Schema has shown each (`tests/engine/core/structured/`).
"""

from collections.abc import Iterator
from typing import Any

from engine.grammar.walk import change_schemas

# Of strings. With others, `\u0061` may spell a property that is named, beside what is said of it.
ESCAPES = 'nrbtf\\"'
_CONTROL = frozenset(map(chr, (*range(0x20), 0x7F))) - set("\b\f\n\r\t")
# llguidance's formats have a 29th of February in each year, and a leap second in each minute.
_DATE = (
    "^(?:[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|[0-9]{4}-(?:0[13-9]|1[0-2])-(?:29|30)|[0-9]{4}-(?:0[13578]|1[02])-31"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = "[0-9]{2}:[0-9]{2}:[0-5]"
_PATTERNS = {"date": [_DATE], "time": ["^" + _TIME], "date-time": [_DATE, "[Tt ]" + _TIME]}
_COUNTS = tuple(f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties"))
_NOTHING_SAID = {"uniqueItems": False, "unevaluatedProperties": True, "unevaluatedItems": True}


def tighten(schema: Any) -> Any:
    """The same for llguidance. Raises ValueError for what it would not hold."""
    if not isinstance(schema, dict):
        return schema
    said, problems = schema.get("x-guidance"), _Problems(schema)
    options = said if isinstance(said, dict) else {}
    if problems.found and not options.get("lenient"):
        raise ValueError(problems.found[0])
    if not problems.has_control:
        options = {"json_allowed_escapes": ESCAPES} | options
    return {**change_schemas(schema, _tightened), "x-guidance": options}


def problems_of(schema: Any) -> list[str]:
    """What is not held, a line each."""
    return _Problems(schema).found


class _Problems:
    """What is wrong with a schema, whole."""

    def __init__(self, schema: Any) -> None:
        self.found: list[str] = []
        self.has_control = False  # somewhere a character that only `\\u` may spell
        self._has_names = False  # of properties
        change_schemas(schema, self._look)
        if self.has_control and self._has_names:
            text = "const, enum, pattern: control characters, in a schema that names properties"
            self.found.append(text)

    def _look(self, schema: dict[str, Any]) -> dict[str, Any]:
        wanted, required = schema.get("minProperties"), schema.get("required")
        num_named = len({*map(str, required)}) if isinstance(required, list) else 0
        if isinstance(wanted, int | float) and wanted > num_named + 1:  # it may have one name twice
            self.found.append("minProperties: more than one beside those of required")
        texts = _strings([schema.get("const"), schema.get("enum"), schema.get("pattern")])
        self.has_control |= any(not _CONTROL.isdisjoint(text) for text in texts)
        self._has_names |= not schema.keys().isdisjoint(("properties", "patternProperties"))
        return schema


def _tightened(schema: dict[str, Any]) -> dict[str, Any]:
    schema = {
        name: said
        for name, said in schema.items()
        if name not in _NOTHING_SAID or said is not _NOTHING_SAID[name]
    }
    for name in _COUNTS:  # 2.0 is a count, too
        said = schema.get(name)
        if isinstance(said, float) and said.is_integer():
            schema[name] = int(said)
    asked, also = schema.get("format"), schema.get("allOf", [])
    patterns = _PATTERNS.get(asked, []) if isinstance(asked, str) else []
    if patterns and isinstance(also, list):
        schema["allOf"] = [*also, *({"pattern": each} for each in patterns)]
    return schema


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        yield from _strings([*value.keys(), *value.values()])
