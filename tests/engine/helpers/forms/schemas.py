"""Schemas drawn from a seed, and whether a document is as one says, by rules of our own."""

import random
import re
from typing import Any

MAX_DEPTH = 3
NAMES = ("id", "name", "tags", "é", "a b", "size", "next", "kind")
PATTERNS = ("^[a-z]{2,5}$", "^(yes|no)$", "^[0-9]{3}-[a-f]{1,4}$", "^.{1,6}$")


def draw(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema that something fits."""
    kinds = [_string, _number, _integer, _choice, _literal]
    if depth < MAX_DEPTH:
        kinds += [_object, _object, _array, _any_of]
    return rng.choice(kinds)(rng, depth)


def draw_whole(rng: random.Random) -> dict[str, Any]:
    """As schemas mostly are: of an object, with definitions."""
    schema = _object(rng, 0)
    if rng.random() < 0.3:
        schema["$defs"] = {"shared": draw(rng, 2)}
        schema["properties"]["shared"] = {"$ref": "#/$defs/shared"}
        schema["required"] = [*schema["required"], "shared"]
    return schema


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    low = rng.randrange(3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(1, 8)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-50, 50)
    schema = {"type": "integer", "minimum": low, "maximum": low + rng.randrange(3, 200)}
    if rng.random() < 0.2:
        schema = {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 7}
    return schema


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "number", "minimum": 0, "exclusiveMaximum": rng.randrange(1, 9)}


def _choice(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [None, True, 0, "", "x", "é\n", [1], {"a": 2}]
    return {"enum": rng.sample(values, rng.randrange(1, 5))}


def _literal(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"type": rng.choice(["boolean", "null", ["null", "boolean"]])}
    return {"const": rng.choice(["fixed", 12, None, [True, False]])}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(1, 5))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: draw(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }
    if rng.random() < 0.04:  # what may go on for ever mostly does, of a model that walks at random
        schema["additionalProperties"] = draw(rng, MAX_DEPTH)
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(3)
    schema: dict[str, Any] = {"type": "array", "items": draw(rng, depth + 1)}
    schema |= {"minItems": low, "maxItems": low + rng.randrange(1, 3)}
    if rng.random() < 0.2:
        schema["prefixItems"] = [draw(rng, MAX_DEPTH)]
    return schema


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [draw(rng, depth + 1) for _ in range(2)]}


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    """Whether a document is as a schema of ours says. KeyError for what none of ours has."""
    root = root or schema
    return all(_HOLDS[name](value, said, schema, root) for name, said in schema.items())


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_fits(value: Any, name: str) -> bool:
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return _is_number(value)
    kinds = {"string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}
    return isinstance(value, kinds[name])


def _properties(value: Any, said: Any, schema: Any, root: Any) -> bool:
    if not isinstance(value, dict):
        return True
    return all(fits(value[name], each, root) for name, each in said.items() if name in value)


def _others(value: Any, said: Any, schema: Any, root: Any) -> bool:
    others = [value[name] for name in value if name not in schema["properties"]]
    return all(said is not False and fits(each, said, root) for each in others)


def _items(value: Any, said: Any, schema: Any, root: Any) -> bool:
    return all(fits(each, said, root) for each in value[len(schema.get("prefixItems", ())) :])


def _first_items(value: Any, said: Any, schema: Any, root: Any) -> bool:
    return all(fits(each, one, root) for each, one in zip(value, said, strict=False))


_HOLDS: dict[str, Any] = {
    "type": lambda v, said, *_: any(
        _type_fits(v, name) for name in ([said] if isinstance(said, str) else said)
    ),
    "enum": lambda v, said, *_: any(_same(v, each) for each in said),
    "const": lambda v, said, *_: _same(v, said),
    "minLength": lambda v, said, *_: len(v) >= said,
    "maxLength": lambda v, said, *_: len(v) <= said,
    "pattern": lambda v, said, *_: re.search(said, v, re.DOTALL) is not None,
    "minimum": lambda v, said, *_: v >= said,
    "maximum": lambda v, said, *_: v <= said,
    "exclusiveMaximum": lambda v, said, *_: v < said,
    "multipleOf": lambda v, said, *_: v % said == 0,
    "required": lambda v, said, *_: all(name in v for name in said),
    "maxProperties": lambda v, said, *_: len(v) <= said,
    "minItems": lambda v, said, *_: len(v) >= said,
    "maxItems": lambda v, said, *_: len(v) <= said,
    "properties": _properties,
    "additionalProperties": _others,
    "items": _items,
    "prefixItems": _first_items,
    "anyOf": lambda v, said, schema, root: any(fits(v, each, root) for each in said),
    "$ref": lambda v, said, schema, root: fits(v, root["$defs"][said.split("/")[-1]], root),
    "$defs": lambda *_: True,
}
