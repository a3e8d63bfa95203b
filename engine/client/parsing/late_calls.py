"""Calls in dialects that only their end makes readable: what transformers' content parsers read.

The name leaves at once if the marker has said it; arguments leave when the region is over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from engine.client.parsing.anchors import PATTERN_SECONDS
from engine.client.parsing.calls import MAX_HELD, NAME, Body, CallWriter, Tools
from engine.client.parsing.pair_calls import coerced, schema_types

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_UNQUOTED_KEY = re.compile(r"(?<=[{,])(\w+):")
MAX_CHARACTERS = 4 * MAX_HELD  # of a region that may be none of calls


@dataclass(frozen=True, slots=True)
class LateCalls:
    """A field of a `response_template`: how its text is read, and where the call is in that."""

    content: str
    arguments: Mapping[str, Any]
    transform: Any
    is_each: bool  # the text is a list of calls

    def markers(self) -> Sequence[str]:
        return [each for each in _strings(self.arguments) if each]

    def body(self, writer: CallWriter, tools: Tools, captures: Mapping[str, str]) -> Body:
        return LateBody(self, writer, tools, captures)


class LateBody:
    """Keeps the text of a region until it is over."""

    def __init__(
        self, syntax: LateCalls, writer: CallWriter, tools: Tools, captures: Mapping[str, str]
    ) -> None:
        self._syntax = syntax
        self._writer = writer
        self._tools = tools
        self._captures = captures
        self._pieces: list[str] = []
        self._num_characters = 0
        self.in_string = self.is_done = self.is_failed = False
        name = _at_path(syntax.transform, "function", "name")
        placeholder = _PLACEHOLDER.fullmatch(name) if isinstance(name, str) else None
        known = captures.get(placeholder[1]) if placeholder else name
        if isinstance(known, str) and NAME.fullmatch(known) and not syntax.is_each:
            writer.begin(known)

    def feed(self, text: str) -> int:
        self._pieces.append(text)
        self._num_characters += len(text)
        if self._num_characters > MAX_CHARACTERS and not self._writer.is_open:
            self.is_failed = True
        return len(text)

    def close(self, *, is_cut: bool) -> None:
        text = "".join(self._pieces)
        is_too_long = self._num_characters > MAX_CHARACTERS and not self._writer.is_open
        calls = None if is_cut or is_too_long else self._read(text)
        if self._writer.is_open:
            arguments = calls[0][1] if calls else text
            self._writer.arguments(arguments)
            self._writer.end(is_cut=is_cut)
        elif not calls:
            self.is_failed = True
        else:
            for name, arguments in calls:
                self._writer.begin(name)
                self._writer.arguments(arguments)
                self._writer.end()

    def _read(self, text: str) -> list[tuple[str, str]] | None:
        """Names and arguments in JSON; None if the text is no calls."""
        syntax = self._syntax
        try:
            marks = self._writer.marks
            read = read_content(text, syntax.content, _each(syntax.arguments, marks.mark))
            value = _each(read, marks.plain)
            if syntax.is_each:
                scopes = [{**self._captures, **item} for item in value]
            else:
                scopes = [{**self._captures, "content": value}]
            shaped = [_shaped(syntax.transform, scope) for scope in scopes]
            return [self._call(each["function"]) for each in shaped]
        except (ValueError, TypeError, KeyError, RecursionError, TimeoutError):
            return None

    def _call(self, function: Mapping[str, Any]) -> tuple[str, str]:
        name, arguments = function["name"], function["arguments"]
        if NAME.fullmatch(name) is None:
            raise ValueError(name)
        if isinstance(arguments, str):
            return name, arguments
        properties = self._tools.get(name, {}).get("properties") or {}
        for key, value in arguments.items():
            types = schema_types(properties.get(key))
            if isinstance(value, str):
                arguments[key] = coerced(value, types)
            elif isinstance(value, list) and "array" not in types:
                arguments[key] = [
                    coerced(each, types) if isinstance(each, str) else each for each in value
                ]
        return name, json.dumps(arguments, ensure_ascii=False)


def read_content(text: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """What a content parser of transformers makes of a text. Raises `ValueError`."""
    match name:
        case "json":
            return _read_json(text, arguments)
        case "xml-inline":
            return _read_pairs(text, arguments)
        case "kv-lines":
            return _read_lines(text, arguments)
        case "int":
            return int(_stripped(text, arguments))
        case "float":
            return float(_stripped(text, arguments))
        case "bool":
            return _stripped(text, arguments).lower() in ("true", "1")
        case _:
            return _stripped(text, arguments)


def _stripped(text: str, arguments: Mapping[str, Any]) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _read_json(text: str, arguments: Mapping[str, Any]) -> Any:
    if "\x01" in text or "\x02" in text:
        raise ValueError("characters that no text has")
    working, texts = text, []
    for opening, closing in arguments.get("string_delims", ()):
        pattern = re.compile(re.escape(opening) + "(.*?)" + re.escape(closing), re.DOTALL)

        def keep(match: re.Match[str]) -> str:
            texts.append(match[1])
            return f"\x01{len(texts) - 1}\x02"

        working = pattern.sub(keep, working)
    if arguments.get("unquoted_keys"):
        working = _UNQUOTED_KEY.sub(r'"\1":', working)
    working = re.sub("\x01([0-9]+)\x02", lambda match: json.dumps(texts[int(match[1])]), working)
    try:
        return json.loads(working)
    except ValueError:
        if arguments.get("allow_non_json"):
            return _stripped(text, arguments)
        raise


def _read_pairs(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    pattern = regex.compile(arguments["tag_pattern"], regex.DOTALL)
    pairs: dict[str, Any] = {}
    for match in pattern.finditer(text, timeout=PATTERN_SECONDS):
        groups = match.groupdict()
        value = _read_value(groups.get("value", ""), arguments)
        _put(pairs, groups["key"], value, is_merged=bool(arguments.get("merge_duplicates")))
    return pairs


def _read_lines(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    separator = arguments.get("kv_sep", ":")
    for line in text.split(arguments.get("line_sep", "\n")):
        key, found, value = _stripped(line, arguments).partition(separator)
        if found:
            pairs[_stripped(key, arguments)] = _read_value(_stripped(value, arguments), arguments)
    return pairs


def _read_value(text: str, arguments: Mapping[str, Any]) -> Any:
    parser = arguments.get("value_parser")
    if parser is None:
        return text
    return read_content(text, parser.get("name", "text"), parser.get("args", {}))


def _put(pairs: dict[str, Any], key: str, value: Any, *, is_merged: bool) -> None:
    if key not in pairs or not is_merged:
        pairs[key] = value
    elif isinstance(pairs[key], list):
        pairs[key].append(value)
    else:
        pairs[key] = [pairs[key], value]


def _shaped(transform: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(transform, Mapping):
        return {key: _shaped(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_shaped(value, scope) for value in transform]
    whole = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if whole is None:
        return transform
    value: Any = scope
    for key in whole[1].split("."):
        value = value[key]
    return value


def _at_path(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _each(value: Any, changed: Callable[[str], str]) -> Any:
    """The same with all of its texts changed."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, Mapping):
        return {changed(key): _each(each, changed) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_each(each, changed) for each in value]
    return value


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _strings(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in _strings(each)]
    return []
