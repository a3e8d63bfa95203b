"""Calls in the making: `CallWriter` says of them what is certain; a `Body` reads one's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.client.parsing.anchors import Until
from engine.client.parsing.events import CallArguments, CallBegin, CallEnd, Event
from engine.client.parsing.json_values import JsonString, JsonValue, is_object
from engine.client.parsing.marks import Marks

MAX_HELD = 2**14  # characters of what may be a call, before it is certain that it is one
MAX_NAME = 256  # characters, with what may stand around it
NAME = re.compile(r"[\w.:/-]{1,128}")  # of marked text: a control token is in no name
_NAME_SO_FAR = re.compile(r"\s*[\w.:/-]*\s*")
# What models write before the arguments: nothing, or a fence of Markdown; and beginnings of it.
_GAP = re.compile(r"\s*(?:`{0,3}|```j|```js|```jso|```json\s*)")


Tools = Mapping[str, Mapping[str, Any]]  # name → JSON schema of the arguments


class Body(Protocol):
    """The text of a call between its markers, or of several calls."""

    is_done: bool  # all calls are there; what follows is none of them
    is_failed: bool  # this is no call, and nothing was said of one

    @property
    def in_string(self) -> bool:
        """Whether a marker that is only spelled here would be a part of a text."""

    def feed(self, text: str) -> int:
        """Take more marked text; how many characters were taken: fewer only if that ends it."""

    def close(self, *, is_cut: bool) -> None:
        """The end of the region; `is_cut` if the answer ends without one."""


class BodySyntax(Protocol):
    """How a format writes what lies between the markers of a call."""

    def markers(self) -> Sequence[str]:
        """The markers in it, and patterns with such."""

    def body(self, writer: CallWriter, tools: Tools, captures: Mapping[str, str]) -> Body:
        """What reads it; `captures` are of the pattern that the call began with."""


class CallWriter:
    """Numbers the calls of one answer, and knows the arguments of the one that is open."""

    def __init__(
        self, out: Callable[[Event], None], marks: Marks, make_id: Callable[[int], str]
    ) -> None:
        self._out = out
        self._make_id = make_id
        self.num_begun = 0
        self._arguments: list[str] = []
        self.marks = marks
        self.is_open = False

    def begin(self, name: str, call_id: str = "") -> None:
        self.is_open = True
        self._arguments = []
        index = self.num_begun
        self.num_begun += 1
        self._out(CallBegin(index, call_id or self._make_id(index), name))

    def arguments(self, text: str) -> None:
        text = self.marks.plain(text)
        if text:
            self._arguments.append(text)
            self._out(CallArguments(self.num_begun - 1, text))

    def end(self, *, is_cut: bool = False) -> None:
        """The call is over, or what was said of it. Idempotent.

        One without arguments has an empty object of them.
        """
        if not self.is_open:
            return
        if not self._arguments and not is_cut:
            self.arguments("{}")
        self.is_open = False
        self._out(CallEnd(self.num_begun - 1, is_object("".join(self._arguments))))


class Arguments:
    """The JSON value that is a call's arguments, streamed; of a text, what it says."""

    def __init__(self, writer: CallWriter) -> None:
        self._writer = writer
        self._value = JsonValue()
        self._string = JsonString()
        self._held: list[str] = []  # until the call has a name

    @property
    def in_string(self) -> bool:
        return self._value.in_string

    @property
    def is_done(self) -> bool:
        return self._value.is_done

    def feed(self, text: str, at: int) -> int:
        """Where what was taken ends: at the value's end, or with all of the text."""
        is_first = not self._value.kind
        end = self._value.feed(text, at)
        if self._value.is_broken:  # then only the region's marker says where it ends
            end = len(text)
        if self._value.kind != '"':
            self._say(text[at:end])
            return end
        inside = self._writer.marks.plain(text[at + is_first : end - self.is_done])
        self._say(self._string.feed(inside))
        if self.is_done:
            self._say(self._string.finish())
        return end

    def release(self) -> None:
        """The call has begun: what was held is said."""
        held, self._held = self._held, []
        self._writer.arguments("".join(held))

    def _say(self, text: str) -> None:
        if self._writer.is_open:
            self._writer.arguments(text)
        else:
            self._held.append(text)


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """A call that is a name, a marker or nothing, and arguments in JSON."""

    name_ends: tuple[str, ...] = ()  # besides the arguments themselves
    after: str = ""  # a marker that the name follows
    id_begins: str = ""  # a marker after the name, which the call's own id follows
    before: str = ""  # what models write before the marker `after`
    around: tuple[str, str] = ("", "")  # what they write around the arguments

    def markers(self) -> Sequence[str]:
        return [each for each in (*self.name_ends, self.after, self.id_begins) if each]

    def body(self, writer: CallWriter, tools: Tools, captures: Mapping[str, str]) -> Body:
        return NamedBody(self, writer)


class NamedBody:
    """Reads one such call."""

    def __init__(self, syntax: NamedCalls, writer: CallWriter) -> None:
        self._writer = writer
        mark = writer.marks.mark
        self._id_begins = mark(syntax.id_begins)
        self._id_ends = [*map(mark, syntax.name_ends), "{"]
        self._name_ends = [*self._id_ends, *([self._id_begins] if syntax.id_begins else ())]
        self._until = Until([mark(syntax.after)] if syntax.after else self._name_ends)
        self._phase = self._skip if syntax.after else self._read_name
        self._read = ""  # before what `_until` waits for
        self._name = ""
        self._arguments = Arguments(writer)
        self.is_done = self.is_failed = False

    @property
    def in_string(self) -> bool:
        return self._arguments.in_string

    def feed(self, text: str) -> int:
        at = 0
        while at < len(text) and not (self.is_done or self.is_failed):
            at = self._phase(text, at)
        return at

    def close(self, *, is_cut: bool) -> None:
        read = self._read + self._until.held
        if self._phase == self._read_name and not is_cut:
            self._begin(read)
        elif self._phase == self._read_gap and _GAP.fullmatch(read) is None:
            self._writer.arguments(read)
        elif not self._writer.is_open and not self.is_done:
            self.is_failed = True
        self._writer.end(is_cut=is_cut)

    def _skip(self, text: str, at: int) -> int:
        at, found = self._find(text, at)
        if found:
            self._read, self._phase, self._until = "", self._read_name, Until(self._name_ends)
        return at

    def _read_name(self, text: str, at: int) -> int:
        at, found = self._find(text, at)
        if not found:
            return at
        if self._id_begins and found == self._id_begins:
            self._name, self._read = self._read, ""
            self._phase, self._until = self._read_id, Until(self._id_ends)
            return at
        self._begin(self._read)
        return at - (found == "{")

    def _read_id(self, text: str, at: int) -> int:
        at, found = self._find(text, at)
        if found:
            self._begin(self._name, self._read)
        return at - (found == "{")

    def _find(self, text: str, at: int) -> tuple[int, str]:
        before, at, found = self._until.feed(text, at)
        self._read += before
        is_too_long = len(self._read) > MAX_NAME
        self.is_failed = is_too_long or _NAME_SO_FAR.fullmatch(self._read) is None
        return at, "" if self.is_failed else found

    def _begin(self, name: str, call_id: str = "") -> None:
        if NAME.fullmatch(name.strip()) is None:
            self.is_failed = True
            return
        self._writer.begin(name.strip(), call_id.strip())
        self._read, self._phase, self._until = "", self._read_gap, Until(["{"])

    def _read_gap(self, text: str, at: int) -> int:
        """What stands before the arguments; if it is more than a fence, it is a part of them."""
        before, at, found = self._until.feed(text, at)
        self._read += before
        if _GAP.fullmatch(self._read) is None:
            self._writer.arguments(self._read + found)
            self._phase = self._read_rest
        elif found:
            self._phase = self._read_arguments
            return at - 1
        return at

    def _read_arguments(self, text: str, at: int) -> int:
        at = self._arguments.feed(text, at)
        if self._arguments.is_done:
            self._writer.end()
            self.is_done = True
        return at

    def _read_rest(self, text: str, at: int) -> int:
        self._writer.arguments(text[at:])
        return len(text)
