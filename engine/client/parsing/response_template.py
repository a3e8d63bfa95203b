"""A checkpoint's own `response_template`, which transformers reads, as a `Format`.

`utils/chat_parsing` of transformers says what it means; its parser is what ours is tested against.
Where that gives out a field when it is whole, ours streams what is known to be certain: a text as
it comes, and arguments where the template says plainly where they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import regex

from engine.client.parsing.anchors import Anchor
from engine.client.parsing.calls import BodySyntax
from engine.client.parsing.grammar import Field, Format, Role
from engine.client.parsing.json_calls import JsonArguments, JsonCalls
from engine.client.parsing.late_calls import LateCalls
from engine.client.parsing.pair_calls import PairCalls

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
MAX_PATTERN = 1000  # characters
MAX_FIELDS = 32
_UNUSABLE = re.compile(r"(?<!\\)(?:[*+?}]\?|\\[1-9]|\\g<|\(\?P=|\(\?[a-zA-Z]+[):-])")
_CONTENTS = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines")
_TEXT = r"((?:[^()\[\]{}?*+|\\]|\\[^\w\s])*)"  # of a pattern: plain characters, quoted or not
_TAGS = re.compile(
    _TEXT + r"\(\?P<key>\[\^[^\]]*\]\+\)" + _TEXT + r"(\\s\*)?\(\?P<value>\.\*\?\)(\\s\*)?" + _TEXT
)


class UnreadableTemplate(ValueError):
    """A `response_template` that transformers would not take, or that we cannot bound."""


def read_response_template(template: object) -> Format:
    """Raises `UnreadableTemplate`."""
    if not isinstance(template, Mapping) or template.get("version", 1) != 1:
        raise UnreadableTemplate("it is no object of version 1")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not 0 < len(fields) <= MAX_FIELDS:
        raise UnreadableTemplate("it has no fields, or too many")
    starts = _anchor(template, "start_anchor", "start_anchor_pattern")
    if starts is None:
        raise UnreadableTemplate("it does not say where an answer begins")
    read = [_field(str(name), each) for name, each in fields.items()]
    implicit = [each for each in read if each.begins is None]
    if len(implicit) > 1 or any(each.body is not None for each in implicit):
        raise UnreadableTemplate("more than one field has no beginning, or it is one of calls")
    return Format(
        name="response_template",
        fields=tuple(each for each in read if each.begins is not None),
        implicit=implicit[0] if implicit else Field("nothing"),
        starts=starts,
    )


def _field(name: str, field: object) -> Field:
    if not isinstance(field, Mapping) or field.get("content", "text") not in _CONTENTS:
        raise UnreadableTemplate(f"{name}: what its content is nobody knows")
    role: Role = "text"
    if name == "tool_calls":
        role = "call"
    elif name in REASONING_FIELDS:
        role = "reasoning"
    arguments = field.get("content_args") or {}
    if not isinstance(arguments, Mapping):
        raise UnreadableTemplate(f"{name}: content_args must be an object")
    return Field(
        role,
        begins=_anchor(field, "open", "open_pattern"),
        ends=_anchor(field, "close", "close_pattern"),
        body=_body(field, arguments) if role == "call" else None,
        is_stripped=bool(arguments.get("strip", True)),
    )


def _anchor(field: Mapping[str, Any], text_key: str, pattern_key: str) -> Anchor | None:
    texts, pattern = field.get(text_key), field.get(pattern_key)
    if texts is not None and pattern is not None:
        raise UnreadableTemplate(f"{text_key} and {pattern_key} exclude each other")
    if pattern is not None:
        _check_pattern(pattern)
        return Anchor(pattern=pattern)
    if texts is None:
        return None
    listed = [texts] if isinstance(texts, str) else texts
    if not isinstance(listed, list) or not listed:
        raise UnreadableTemplate(f"{text_key} must be a text, or a list of texts")
    if not all(isinstance(each, str) and each for each in listed):
        raise UnreadableTemplate(f"{text_key} must have texts that are not empty")
    return Anchor(texts=tuple(listed))


def _check_pattern(pattern: object) -> None:
    """Patterns are looked for together. A lazy one does not say whether it is over."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise UnreadableTemplate("a pattern must be a text, and not too long")
    if _UNUSABLE.search(pattern):
        raise UnreadableTemplate("a pattern has a lazy part, refers to a group, or sets a flag")
    _compile(pattern)


def _check_tags(pattern: object) -> None:
    """Of the text of a region that is over, so it may be lazy."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise UnreadableTemplate("a pattern must be a text, and not too long")
    _compile(pattern)


def _compile(pattern: str) -> None:
    try:
        regex.compile(pattern, regex.DOTALL)
    except (regex.error, RecursionError, OverflowError) as error:
        raise UnreadableTemplate(f"a pattern is none: {error}") from None


def _body(field: Mapping[str, Any], arguments: Mapping[str, Any]) -> BodySyntax:
    """What reads the text of a call: something that streams it, where the template is plain."""
    content = field.get("content", "text")
    transform, is_each = field.get("transform"), bool(field.get("transform_each", False))
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if content == "json" and not arguments:
        if function == "{content}" and not is_each:
            return JsonCalls(arguments_keys=("arguments",), id_keys=())
        keys = _keys(function, "" if is_each else "content.")
        if keys is not None:
            return JsonCalls((keys[0],), (keys[1],), id_keys=(), in_list=is_each)
    if function == {"name": "{name}", "arguments": "{content}"} and not is_each:
        if content == "json" and not arguments:
            return JsonArguments()
        if content == "xml-inline" and arguments.keys() == {"tag_pattern"}:
            tags = _TAGS.fullmatch(str(arguments["tag_pattern"]))
            if tags is not None:
                return _pairs(tags)
    if content == "xml-inline":
        _check_tags(arguments.get("tag_pattern"))
    return LateCalls(content, arguments, transform, is_each)


def _keys(function: object, prefix: str) -> tuple[str, str] | None:
    """Where name and arguments are in the JSON, if the transform says no more than that."""
    if not isinstance(function, Mapping) or function.keys() != {"name", "arguments"}:
        return None
    found = [
        re.fullmatch(r"\{" + re.escape(prefix) + r"(\w+)\}", str(function[key]))
        for key in ("name", "arguments")
    ]
    name, arguments = found
    return None if name is None or arguments is None else (name[1], arguments[1])


def _pairs(tags: re.Match[str]) -> PairCalls:
    before, between, space_before, space_after, after = tags.groups()
    key_begins, key_ends, value_ends = (_unquoted(each) for each in (before, between, after))
    return PairCalls(
        key_begins=key_begins,
        key_ends=key_ends,
        value_begins="",
        value_ends=value_ends,
        strip="space" if space_before and space_after else "nothing",
        has_name=False,
    )


def _unquoted(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern)
