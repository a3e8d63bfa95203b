"""Formats as data, and a format for one vocabulary: `Grammar`.

An answer is a row of regions, as in transformers' `response_template`: what stands between a
field's markers is that field's, and what stands outside of all is the implicit field's. In a region
only its own end is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.client.parsing.anchors import Anchor, Watch
from engine.client.parsing.calls import BodySyntax
from engine.client.parsing.marks import AddedToken, Marks, is_mark

Role = Literal["text", "reasoning", "call", "nothing"]  # nothing: it is left out


@dataclass(frozen=True, slots=True)
class Field:
    """A kind of region. `begins` is None for one that is there outside of all others."""

    role: Role
    begins: Anchor | None = None
    ends: Anchor | None = None  # None: where the calls are over, or with the answer
    body: BodySyntax | None = None  # of calls
    is_stripped: bool = True  # white space at both ends is none of it
    # As models begin and end it, where its marks are patterns, or several; {name} is the tool's.
    written: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """How a family of models writes thoughts and calls."""

    name: str
    fields: tuple[Field, ...]
    implicit: Field = Field("text")
    starts: Anchor | None = None  # after its last place in the prompt the answer begins
    bare: BodySyntax | None = None  # calls without markers, which are the whole answer
    # As models write it: what stands around all calls, and between two regions; and whether several
    # calls may follow each other.
    around: tuple[str, str] = ("", "")
    between: str = ""
    has_parallel: bool = True

    @property
    def markers(self) -> list[str]:
        """All of its markers, and its patterns."""
        anchors = [self.starts, self.implicit.begins, self.implicit.ends]
        anchors += [anchor for each in self.fields for anchor in (each.begins, each.ends)]
        found = [
            marker
            for each in anchors
            if each is not None
            for marker in (*each.texts, each.pattern or "")
        ]
        for field in self.fields:
            found += field.body.markers() if field.body is not None else ()
            found += field.written or ()
        return [each for each in (*found, *self.around, self.between) if each]


class Grammar:
    """A format as one vocabulary has it. One is made for a model, and serves all its answers."""

    def __init__(self, format_: Format, tokens: Iterable[AddedToken] = ()) -> None:
        self.format = format_
        self.marks = Marks(tokens, format_.markers)
        self.starts = None if format_.starts is None else self._watch(format_.starts)
        self._ends = {id(each): self._end_of(each) for each in format_.fields}
        self._spelled = {id(each) for each in format_.fields if self._is_spelled(each.ends)}
        self._nothing = self._watch()
        self._outside = {has_calls: self._begin_of(has_calls) for has_calls in (True, False)}

    @property
    def is_plain(self) -> bool:
        """Whether every answer is text, and nothing else."""
        return not self.format.fields and self.format.bare is None

    @property
    def has_calls(self) -> bool:
        """Whether it is known how calls are written."""
        is_call = any(field.role == "call" for field in self.format.fields)
        return is_call or self.format.bare is not None

    def outside(self, *, has_calls: bool) -> tuple[Watch, Sequence[Field | None]]:
        """What is looked for outside of regions, and what begins there; None: only an end."""
        return self._outside[has_calls]

    def end_of(self, field: Field) -> Watch:
        """What is looked for in a region."""
        return self._ends.get(id(field), self._nothing)

    def begun_in(self, prompt: str) -> Field:
        """The field that the end of a prompt has begun, as templates begin a thought."""
        end = prompt.rstrip()
        for each in self.format.fields:
            if each.role == "reasoning" and each.begins is not None:
                if end.endswith(tuple(map(self.marks.mark, each.begins.texts)) or ("\0",)):
                    return each
        return self.format.implicit

    def is_certain(self, marker: str) -> bool:
        """Whether this, which was found, is a token, and not what a text may spell."""
        return any(is_mark(character) for character in marker)

    def is_spelled(self, field: Field) -> bool:
        """Whether nothing that ends it is a token, or has what could end a text of JSON."""
        return id(field) in self._spelled

    def _begin_of(self, has_calls: bool) -> tuple[Watch, Sequence[Field | None]]:
        fields: list[Field | None] = []
        anchors = []
        for each in self.format.fields:
            if each.begins is not None and (has_calls or each.role != "call"):
                fields.append(each)
                anchors.append(each.begins)
        if self.format.implicit.ends is not None:
            fields.append(None)
            anchors.append(self.format.implicit.ends)
        return self._watch(*anchors), fields

    def _end_of(self, field: Field) -> Watch:
        return self._watch() if field.ends is None else self._watch(field.ends)

    def _is_spelled(self, ends: Anchor | None) -> bool:
        if ends is None:
            return False
        markers = map(self.marks.mark, (*ends.texts, ends.pattern or ""))
        return not any(self.is_certain(each) or '"' in each for each in markers)

    def _watch(self, *anchors: Anchor) -> Watch:
        mark, mark_pattern = self.marks.mark, self.marks.mark_pattern
        return Watch(
            [
                Anchor(
                    tuple(map(mark, each.texts)),
                    None if each.pattern is None else mark_pattern(each.pattern),
                )
                for each in anchors
            ]
        )
