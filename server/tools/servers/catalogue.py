"""What a server says of its tools, made into what models and people may be shown; and a check of
arguments that costs nothing.

All of it is a stranger's: names become what models can say, texts lose what a terminal would obey,
schemas are bounded in bytes, depth and in what their references unfold to. A tool beyond a bound
is left out, never half shown.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from server.tools.configuration import ServerConfig, shown
from server.tools.messages import Tool, ToolError

SEPARATOR = "__"
MAX_NAME = 64
MAX_ORIGINAL_NAME = 128
MAX_TOOLS = 128  # of a server
MAX_DESCRIPTION = 4096  # characters
MAX_SCHEMA_BYTES = 16 * 1024
MAX_SCHEMA_DEPTH = 24
MAX_ARGUMENTS_DEPTH = 64
MAX_SCHEMA_NODES = 4000  # with its references unfolded
MAX_LIST_BYTES = 192 * 1024  # of a server
DIGEST_CHARACTERS = 6
NUM_NAMED = 3  # of what is left out

# Control characters beside lines and tabs, marks of direction, halves of characters.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNSAYABLE = re.compile(r"[^A-Za-z0-9_-]")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool, and the name that its server knows it by."""

    tool: Tool
    original: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a server offers. `left_out` says in a line what it does not, empty if nothing."""

    tools: Mapping[str, OfferedTool]  # by the name that models say
    left_out: str = ""


def make_catalogue(config: ServerConfig, found: Iterable[Any], is_whole: bool = True) -> Catalogue:
    """Of `mcp_types.Tool`s. Even if they are hostile, this ends soon and raises nothing."""
    tools: dict[str, OfferedTool] = {}
    left_out: list[str] = []
    num_bytes = 0
    for one in found:
        if len(tools) == MAX_TOOLS:
            is_whole = False
            break
        offered, size = _offer(config, one)
        if offered is None or offered.tool.name in tools or num_bytes + size > MAX_LIST_BYTES:
            left_out.append(shown(one.name))
            continue
        num_bytes += size
        tools[offered.tool.name] = offered
    said = []
    if not is_whole:
        said.append(f"it has more than {MAX_TOOLS} tools; the first are offered")
    if left_out:
        names = ", ".join(left_out[:NUM_NAMED]) + (", …" if len(left_out) > NUM_NAMED else "")
        said.append(f"left out, for a name or a schema that cannot be used: {names}")
    return Catalogue(tools, "; ".join(said))


def _offer(config: ServerConfig, one: Any) -> tuple[OfferedTool | None, int]:
    name = sayable(config.name, one.name)
    if name is None:
        return None, 0
    description = plain(one.description or "", MAX_DESCRIPTION)
    size = _schema_bytes(one.input_schema)
    if size is None:
        return None, 0
    tool = Tool(
        name=name,
        server=config.name,
        title=shown(one.name),
        description=description,
        input_schema=one.input_schema,
        is_read_only=bool(one.annotations and one.annotations.read_only_hint),
        consent=config.consent,
        max_calls_per_answer=config.max_calls_per_answer,
        timeout_seconds=config.timeout_seconds,
    )
    return OfferedTool(tool, one.name), size + len(description.encode())


def sayable(server: str, original: str) -> str | None:
    """`server__tool` in letters, digits, `_` and `-`, at most 64; None for what is no name.

    The same for the same words. What had to be changed carries a digest of what it was, so two
    tools of a server do not meet in one name.
    """
    if not 0 < len(original) <= MAX_ORIGINAL_NAME or re.search(r"[\r\n\t]", original):
        return None
    if _OBEYED.search(original):
        return None
    name = f"{server}{SEPARATOR}{_UNSAYABLE.sub('_', original)}"
    if len(name) <= MAX_NAME and name == f"{server}{SEPARATOR}{original}":
        return name
    digest = hashlib.sha256(original.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"{name[: MAX_NAME - DIGEST_CHARACTERS - 1]}_{digest}"


def plain(text: str, max_characters: int | None = None) -> str:
    """The text without control characters and marks of direction; lines and tabs stay."""
    return _OBEYED.sub("", text if max_characters is None else text[:max_characters])


def one_line(text: str, max_characters: int = 300) -> str:
    """A stranger's words as a part of a line."""
    return " ".join(plain(text, max_characters).split())


def _schema_bytes(schema: Mapping[str, Any]) -> int | None:
    """Its length as JSON; None if it is too long, too deep or unfolds to too much."""
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
        if size > MAX_SCHEMA_BYTES or schema.get("type", "object") != "object":
            return None
        num_nodes = _Unfolding(schema).num_nodes(schema)
    except (ValueError, TypeError, RecursionError):
        return None
    return size if num_nodes <= MAX_SCHEMA_NODES else None


class _Unfolding:
    """Counts what a schema is with each local reference replaced by what it stands for."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._sizes: dict[str, int] = {}

    def num_nodes(self, node: object, depth: int = 0) -> int:
        if depth > MAX_SCHEMA_DEPTH:
            raise ValueError("too deep")
        if isinstance(node, list):
            return 1 + sum(self.num_nodes(one, depth + 1) for one in node)
        if not isinstance(node, dict):
            if isinstance(node, str) and _OBEYED.search(node):
                raise ValueError("control characters")
            return 1
        if any(_OBEYED.search(key) for key in node):
            raise ValueError("control characters")
        size = 1 + sum(self.num_nodes(one, depth + 1) for one in node.values())
        reference = node.get("$ref")
        return size + (self._size_of(reference) if isinstance(reference, str) else 0)

    def _size_of(self, reference: str) -> int:
        """Zero within itself: a schema that refers to itself describes a tree, and is no bomb."""
        if reference not in self._sizes:
            self._sizes[reference] = 0
            # Its own depth counts from zero: no chain of references is deeper than Python's stack.
            self._sizes[reference] = self.num_nodes(self._target(reference))
        return self._sizes[reference]

    def _target(self, reference: str) -> object:
        if not reference.startswith("#"):
            raise ValueError("a reference to elsewhere")
        target: Any = self._root
        for part in filter(None, reference[1:].split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target.get(key)
            if target is None:
                raise ValueError("a reference to nothing")
        return target


def parse_arguments(text: bytes, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a model has said, as an object. Raises `ToolError` for what is plainly wrong.

    Names, presence and kinds of the outermost fields are compared, which cannot take long; patterns
    and the rest are the server's to check.
    """
    try:
        arguments = json.loads(text or b"{}", parse_constant=_refuse_constant)
        _check_writable(arguments)
    except (ValueError, RecursionError):
        raise ToolError("tool_arguments_invalid", "the arguments are no JSON") from None
    if not isinstance(arguments, dict):
        raise ToolError("tool_arguments_invalid", "the arguments are no JSON object")
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else []:
        if isinstance(name, str) and name not in arguments:
            raise ToolError("tool_arguments_invalid", f"{shown(name)} is missing")
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        for name in arguments.keys() - known.keys():
            raise ToolError("tool_arguments_invalid", f"{shown(name)} is unknown")
    for name, value in arguments.items():
        _check_value(name, value, known.get(name))
    return arguments


def _check_writable(value: object, depth: int = 0) -> None:
    """Raises `ValueError` for what no message can hold: half a character, a very deep nesting."""
    if depth > MAX_ARGUMENTS_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list):
        for part in value:
            _check_writable(part, depth + 1)
    elif isinstance(value, dict):
        for name, part in value.items():
            name.encode()
            _check_writable(part, depth + 1)


def _check_value(name: str, value: object, schema: object) -> None:
    if not isinstance(schema, dict):
        return
    given = schema.get("type")
    kinds = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    if kinds and all(kind in _TYPES for kind in kinds if isinstance(kind, str)):
        if not any(isinstance(kind, str) and _is_a(value, kind) for kind in kinds):
            expected = " or ".join(str(kind) for kind in kinds)
            raise ToolError("tool_arguments_invalid", f"{shown(name)} must be of type {expected}")
    choices = schema.get("enum")
    if isinstance(choices, list) and not any(_is_same(value, choice) for choice in choices):
        raise ToolError("tool_arguments_invalid", f"{shown(name)} is none of its choices")


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _is_same(value: object, choice: object) -> bool:
    """True is not 1 in JSON."""
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
