"""Calls that are a name and pairs of a key and a value, each between markers; XML, more or less.

The arguments become JSON as they come. A value is a text, which is streamed, unless the tool says
that it is something else: then it is read when it is whole, by the rules of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.client.parsing.anchors import Until
from engine.client.parsing.calls import MAX_NAME, NAME, Body, CallWriter, Tools

Strip = Literal["space", "newline", "nothing"]  # around a value


@dataclass(frozen=True, slots=True)
class PairCalls:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`, and others of that kind."""

    key_begins: str
    key_ends: str
    value_begins: str  # "" if the key's end is the value's beginning
    value_ends: str
    name_begins: str = ""  # "": with the call
    name_ends: str = ""  # "": with the line, or with the first key
    strip: Strip = "space"
    has_name: bool = True  # False: the marker before has said it
    after: str = ""  # what models write after the last pair

    def markers(self) -> Sequence[str]:
        texts = (self.name_begins, self.name_ends, self.key_begins, self.key_ends)
        return [each for each in (*texts, self.value_begins, self.value_ends) if each]

    def body(self, writer: CallWriter, tools: Tools, captures: Mapping[str, str]) -> Body:
        return PairBody(self, writer, tools, captures)


class PairBody:
    """Reads one such call."""

    def __init__(
        self, syntax: PairCalls, writer: CallWriter, tools: Tools, captures: Mapping[str, str]
    ) -> None:
        self._syntax = syntax
        self._writer = writer
        self._tools = tools
        self._properties: Mapping[str, Any] = {}
        self._plain = writer.marks.plain
        self._read = ""
        self._num_pairs = 0
        self._value: _Value | None = None
        self.is_done = self.is_failed = False
        self._until = self._new_until(syntax.name_begins or syntax.name_ends or "\n")
        self._phase: Callable[[str, int], int] = self._find_name
        if not syntax.has_name:
            self._begin(captures["name"])
        elif not syntax.name_begins:
            self._wait_for_name_end()

    @property
    def in_string(self) -> bool:
        return self._value is not None

    def feed(self, text: str) -> int:
        at = 0
        while at < len(text) and not self.is_failed:
            at = self._phase(text, at)
        return at

    def close(self, *, is_cut: bool) -> None:
        if self._phase == self._read_name and not is_cut and not self._syntax.name_ends:
            self._begin(self._read + self._until.held)  # a call without arguments
        if not self._writer.is_open:
            self.is_failed = True
            return
        if self._value is not None:  # a value without an end: what there is of it stays
            self._value.feed(self._plain(self._until.held))
            self._value.break_off()
            is_cut = True
        if self._num_pairs and not is_cut:
            self._writer.arguments("}")
        self._writer.end(is_cut=is_cut)

    def _new_until(self, *markers: str) -> Until:
        return Until([self._writer.marks.mark(each) for each in markers])

    def _find_name(self, text: str, at: int) -> int:
        before, at, found = self._until.feed(text, at)
        self._read += before
        if self._read.strip():
            self.is_failed = True
        elif found:
            self._read = ""
            self._wait_for_name_end()
        return at

    def _wait_for_name_end(self) -> None:
        syntax = self._syntax
        ends = (syntax.name_ends,) if syntax.name_ends else ("\n", syntax.key_begins)
        self._until = self._new_until(*ends)
        self._phase = self._read_name

    def _read_name(self, text: str, at: int) -> int:
        before, at, found = self._until.feed(text, at)
        self._read += before
        if len(self._read) > MAX_NAME:
            self.is_failed = True
        elif found == "\n" and not self._read.strip():  # the line before the name
            self._read = ""
        elif found:
            self._begin(self._read)
            if found == self._writer.marks.mark(self._syntax.key_begins):
                self._wait_for_key_end()
        elif self._read.strip() and NAME.fullmatch(self._read.strip()) is None:
            self.is_failed = True
        return at

    def _begin(self, name: str) -> None:
        name = name.strip()
        if NAME.fullmatch(name) is None:
            self.is_failed = True
            return
        self._writer.begin(name)
        properties = self._tools.get(name, {}).get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._wait_for_key()

    def _wait_for_key(self) -> None:
        self._value = None
        self._until, self._phase = self._new_until(self._syntax.key_begins), self._find_key

    def _find_key(self, text: str, at: int) -> int:
        _, at, found = self._until.feed(text, at)
        if found:
            self._wait_for_key_end()
        return at

    def _wait_for_key_end(self) -> None:
        self._read = ""
        self._until, self._phase = self._new_until(self._syntax.key_ends), self._read_key

    def _read_key(self, text: str, at: int) -> int:
        before, at, found = self._until.feed(text, at)
        self._read += before
        if found and self._syntax.value_begins:
            self._until = self._new_until(self._syntax.value_begins)
            self._phase = self._find_value
        elif found:
            self._begin_value()
        return at

    def _find_value(self, text: str, at: int) -> int:
        _, at, found = self._until.feed(text, at)
        if found:
            self._begin_value()
        return at

    def _begin_value(self) -> None:
        key = self._plain(self._read).strip()
        self._writer.arguments(("{" if self._num_pairs == 0 else ", ") + _quoted(key) + ": ")
        self._num_pairs += 1
        types = schema_types(self._properties.get(key))
        self._value = _Value(self._writer, types, self._syntax.strip)
        self._until, self._phase = self._new_until(self._syntax.value_ends), self._read_value

    def _read_value(self, text: str, at: int) -> int:
        assert self._value is not None
        before, at, found = self._until.feed(text, at)
        if before:
            self._value.feed(self._plain(before))
        if found:
            self._value.end()
            self._wait_for_key()
        return at


class _Value:
    """One value on its way into JSON: at once if it can only be a text."""

    def __init__(self, writer: CallWriter, types: Sequence[str], strip: Strip) -> None:
        self._writer = writer
        self._types = types
        self._strip = strip
        self._is_text = set(types) <= {"string"}
        self._pieces: list[str] = []  # of what is not streamed
        self._space = ""  # that may be the end
        self._has_begun = False
        if self._is_text:
            writer.arguments('"')

    def feed(self, text: str) -> None:
        text = self._space + text
        if self._strip == "space":
            text = text if self._has_begun else text.lstrip()
            said = text.rstrip()
        elif self._strip == "newline":
            text = text if self._has_begun else text.removeprefix("\n")
            said = text.removesuffix("\n")
        else:
            said = text
        self._space = text[len(said) :]
        self._has_begun = self._has_begun or bool(text) or self._strip == "newline"
        self._add(said)

    def end(self) -> None:
        if self._is_text:
            self._writer.arguments('"')
        else:
            value = coerced("".join(self._pieces), self._types)
            self._writer.arguments(_quoted(value))

    def break_off(self) -> None:
        """It has no end: what there is of it is no JSON."""
        self._writer.arguments("".join(self._pieces))

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._is_text:
            self._writer.arguments(_quoted(text)[1:-1])
        else:
            self._pieces.append(text)


def schema_types(schema: object) -> tuple[str, ...]:
    """The types that a JSON schema allows, in its order, as transformers reads them."""
    if not isinstance(schema, Mapping):
        return ()
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared]
    types = [each for each in listed if isinstance(each, str)]
    for union in ("anyOf", "oneOf"):
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else ():
            types.extend(schema_types(choice))
    if schema.get("nullable") and "null" not in types:
        types.append("null")
    return tuple(types)


def coerced(text: str, types: Sequence[str]) -> Any:
    """What a text says as the first of these types that it can be, else the text."""
    for name in types:
        try:
            value = _READERS[name](text)
        except (KeyError, ValueError, OverflowError, RecursionError):
            continue
        return value
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # whole numbers may be written as 3.0
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> int | float:
    number = float(text)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(text)
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    said = text.strip().lower()
    if said not in ("true", "1", "false", "0"):
        raise ValueError(text)
    return said in ("true", "1")


def _null(text: str) -> None:
    if text.strip() not in ("null", "None"):
        raise ValueError(text)


def _container(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError(text)
        return value

    return read


_READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "object": _container(dict),
    "array": _container(list),
}


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
