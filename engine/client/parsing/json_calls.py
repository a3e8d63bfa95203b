"""Calls that are JSON: an object with a name and arguments, or a list of such; or arguments alone.

The names of the keys are the format's. What is read is certain as soon as the name is; arguments
that come before it wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from engine.client.parsing.calls import MAX_HELD, NAME, Arguments, Body, CallWriter, Tools
from engine.client.parsing.json_values import SPACE, JsonValue, read_string

_BETWEEN = ";,"  # what may stand between calls that follow each other


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Objects with a name and arguments, among others; several in a list, or in a row."""

    name_keys: tuple[str, ...] = ("name",)
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ("id",)
    is_bare: bool = False  # without markers: it is a call if it calls a tool that there is
    in_list: bool = False  # models write a list of them, also of one

    def markers(self) -> Sequence[str]:
        return ()

    def body(self, writer: CallWriter, tools: Tools, captures: Mapping[str, str]) -> Body:
        return JsonBody(self, writer, tools if self.is_bare else None)


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """The arguments of a call whose name the marker before it has said."""

    def markers(self) -> Sequence[str]:
        return ()

    def body(self, writer: CallWriter, tools: Tools, captures: Mapping[str, str]) -> Body:
        return ArgumentsBody(writer, captures["name"])


class JsonBody:
    """Reads one such text."""

    def __init__(
        self, syntax: JsonCalls, writer: CallWriter, names: Collection[str] | None
    ) -> None:
        self._writer = writer
        self._syntax = syntax
        self._names = names  # that may be called; None: any
        self._first_keys = (*syntax.name_keys, *syntax.id_keys, "type")
        self._in_list = False
        self._num_taken = 0
        self._has_begun = False  # any call
        self._phase: Callable[[str, int], int] = self._open
        self._new_object()
        self.is_done = self.is_failed = False

    def _new_object(self) -> None:
        self._name: str | None = None
        self._id = ""
        self._key = ""
        self._value = JsonValue()
        self._read: list[str] = []  # of a text that is needed whole
        self._arguments = Arguments(self._writer)

    @property
    def in_string(self) -> bool:
        return self._value.in_string or self._arguments.in_string

    def feed(self, text: str) -> int:
        at = 0
        while at < len(text) and not (self.is_done or self.is_failed):
            at = self._phase(text, at)
            if not self._has_begun:
                self._check_held(at)
        self._num_taken += at
        return at

    def close(self, *, is_cut: bool) -> None:
        self.is_failed = not self._has_begun
        self._writer.end(is_cut=is_cut)

    def _open(self, text: str, at: int) -> int:
        at = _skip_space(text, at)
        if at < len(text):
            if text[at] == "[" and not self._in_list:
                self._in_list = True
            elif text[at] == "{":
                self._phase = self._read_key
            elif self._has_begun and text[at] in _BETWEEN:
                pass
            else:
                return self._leave(at + (text[at] == "]"))
            at += 1
        return at

    def _read_key(self, text: str, at: int) -> int:
        if not self._value.kind:
            at = _skip_space(text, at)
            if at == len(text):
                return at
            if text[at] == "}":
                return self._end_object(at)
            if text[at] != '"':
                return self._break(at)
        at, key = self._read_text(text, at)
        if key is not None:
            self._key, self._phase = key, self._read_colon
            if self._syntax.is_bare and self._name is None and key not in self._first_keys:
                return self._break(at)  # an answer in JSON is not held back until it is whole
        return at

    def _read_colon(self, text: str, at: int) -> int:
        at = _skip_space(text, at)
        if at < len(text):
            if text[at] != ":":
                return self._break(at)
            at += 1
            self._phase = self._read_value
        return at

    def _read_value(self, text: str, at: int) -> int:
        at = _skip_space(text, at)
        if at == len(text):
            return at
        syntax = self._syntax
        if self._key in syntax.arguments_keys and not self._arguments.is_done:
            self._phase = self._read_arguments
            if self._name is not None:
                self._begin(at)
        elif self._key in syntax.name_keys + syntax.id_keys and text[at] == '"':
            self._phase = self._read_name
        else:
            self._phase = self._skip_value
        return at

    def _read_name(self, text: str, at: int) -> int:
        at, said = self._read_text(text, at)
        if said is None:
            return at
        self._phase = self._read_next
        if self._key in self._syntax.id_keys:
            self._id = said
        elif self._name is None:
            self._name = said
            is_known = self._names is None or said in self._names
            if NAME.fullmatch(said) is None or not is_known:
                return self._break(at)
            if self._names is None or self._arguments.is_done:
                self._begin(at)
        return at

    def _read_arguments(self, text: str, at: int) -> int:
        at = self._arguments.feed(text, at)
        if self._arguments.is_done:
            self._phase = self._read_next
        return at

    def _skip_value(self, text: str, at: int) -> int:
        at = self._value.feed(text, at)
        if self._value.is_broken:
            return self._break(at)
        if self._value.is_done:
            self._value, self._phase = JsonValue(), self._read_next
        return at

    def _read_next(self, text: str, at: int) -> int:
        at = _skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            return self._end_object(at)
        if text[at] != ",":
            return self._break(at)
        self._phase = self._read_key
        return at + 1

    def _end_object(self, at: int) -> int:
        if not self._writer.is_open:  # it has no name; or is bare, and has no arguments
            return self._break(at)
        self._writer.end()
        self._new_object()
        self._phase = self._open
        self.is_done = self._syntax.is_bare
        return at + 1

    def _begin(self, at: int) -> None:
        """The name is known, and what it is read as; the text up to `at` says so."""
        self._check_held(at)
        if not (self.is_failed or self._writer.is_open):
            assert self._name is not None
            self._has_begun = True
            self._writer.begin(self._name, self._id)
            self._arguments.release()

    def _check_held(self, at: int) -> None:
        self.is_failed = self.is_failed or (not self._has_begun and self._num_taken + at > MAX_HELD)

    def _break(self, at: int) -> int:
        """This is no JSON: no call, if nothing was said of one, else the end of what was said."""
        self._writer.end(is_cut=True)
        return self._leave(at)

    def _leave(self, at: int) -> int:
        self.is_failed = not self._has_begun
        self.is_done = self._has_begun
        return at

    def _read_text(self, text: str, at: int) -> tuple[int, str | None]:
        """What a text says, once it is whole."""
        end = self._value.feed(text, at)
        self._read.append(text[at:end])
        if not self._value.is_done:
            return end, None
        said = read_string(self._writer.marks.plain("".join(self._read))[1:-1])
        self._value, self._read = JsonValue(), []
        return end, said


class ArgumentsBody:
    """Reads the arguments of a call that has a name: all of the text, JSON or not."""

    def __init__(self, writer: CallWriter, name: str) -> None:
        self._writer = writer
        self._arguments = Arguments(writer)
        self._has_begun = False
        self._space = ""  # after the arguments
        self.is_done = False
        self.is_failed = NAME.fullmatch(name) is None
        if not self.is_failed:
            writer.begin(name)

    @property
    def in_string(self) -> bool:
        return self._arguments.in_string

    def feed(self, text: str) -> int:
        at = 0 if self._has_begun else _skip_space(text, 0)
        while at < len(text):
            self._has_begun = True
            read = self._read_rest if self._arguments.is_done else self._arguments.feed
            at = read(text, at)
        return at

    def close(self, *, is_cut: bool) -> None:
        self._writer.end(is_cut=is_cut)

    def _read_rest(self, text: str, at: int) -> int:
        """More than a value is no JSON, but what the model has written."""
        rest = self._space + text[at:]
        said = rest.rstrip()
        self._space = rest[len(said) :]
        self._writer.arguments(said)
        return len(text)


def _skip_space(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    assert match is not None
    return match.end()
