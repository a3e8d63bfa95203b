"""How the marks of a field are spelled, where a template may have patterns of them.

A pattern does not say what it is written as. What the models of a known format write does, if it
fits; so does a pattern that is a text around the name of a tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import regex

from engine.client.parsing.anchors import Anchor
from engine.client.parsing.calls import NamedCalls
from engine.client.parsing.formats import FORMATS
from engine.client.parsing.grammar import Field, Format
from engine.client.parsing.pair_calls import PairCalls

_TEXT = r"((?:[^()\[\]{}?*+|\\]|\\[^\w\s])*)"  # of a pattern: plain characters, quoted or not
_NAMED = re.compile(_TEXT + r"\(\?P<name>[^()]*\)" + _TEXT)
_NAME = "{name}"
_ANY_NAME = "x"


class Spelling(NamedTuple):
    """Texts. The two of a field are None where nobody knows them; `begin` may have {name}."""

    begin: str | None
    end: str | None
    around: tuple[str, str] = ("", "")  # all calls
    between: str = ""  # two regions
    has_parallel: bool = True


def spelling_of(field: Field, format_: Format) -> Spelling:
    """How models write the marks of a field, of thoughts or of calls; an end may be empty."""
    own = _own(field, format_)
    if own.begin is not None and own.end is not None:
        return own
    for known in FORMATS.values():
        for each in known.fields:
            begin, end = own.begin, own.end
            if each.role == field.role:
                begin = begin or next((it for it in _begins(each) if _fits(field.begins, it)), None)
                if end is None:
                    end = next((it for it in _ends(each) if _fits(field.ends, it)), None)
            if begin is not None and end is not None:
                return _as_in(known, field, begin, end)
    return own if own.begin is not None else own._replace(begin=_around_name(field.begins))


def _own(field: Field, format_: Format) -> Spelling:
    """What the format itself says."""
    begin = None if field.begins is None else next(iter(field.begins.texts), None)
    end = "" if field.ends is None else next(iter(field.ends.texts), None)
    if field.written is not None:
        begin, end = field.written
    return Spelling(begin, end, format_.around, format_.between, format_.has_parallel)


def _as_in(known: Format, field: Field, begin: str, end: str) -> Spelling:
    """With what stands between and around the calls of a known format, where it fits."""
    around, between = known.around, known.between
    if not (_fits(field.begins, around[0] + begin) and _fits(field.ends, end + around[1])):
        around = ("", "")
    if not _fits(field.begins, between + begin):
        between = ""
    return Spelling(begin, end, around, between, known.has_parallel)


def _begins(field: Field) -> Iterator[str]:
    """What may be the beginning in a template: with the name, or without."""
    begin = (field.written or field.begins.texts if field.begins is not None else ("",))[0]
    yield begin
    match field.body:
        case PairCalls(name_begins=before, name_ends=after) if before:
            yield f"{begin}\n{before}{_NAME}{after}"
        case NamedCalls():
            yield f"{begin}{field.body.before}{field.body.after}{_NAME}{field.body.name_ends[0]}"


def _ends(field: Field) -> Iterator[str]:
    texts = field.written[1:] if field.written else field.ends.texts if field.ends else ()
    for end in texts:
        yield end
        if isinstance(field.body, PairCalls) and field.body.after:
            yield f"{field.body.after}\n{end}"


def _fits(anchor: Anchor | None, text: str) -> bool:
    """Whether a parser would find this text as a whole, and the name in it."""
    if anchor is None:
        return not text
    if anchor.pattern is None:
        return text in anchor.texts
    found = regex.fullmatch(anchor.pattern, text.replace(_NAME, _ANY_NAME), regex.DOTALL)
    if found is None:
        return False
    names = {each for each in found.groupdict().values() if each is not None}
    return names == ({_ANY_NAME} if _NAME in text else set())


def _around_name(anchor: Anchor | None) -> str | None:
    """A pattern that is a text around a name, as this text."""
    found = _NAMED.fullmatch(anchor.pattern or "") if anchor is not None else None
    if found is None:
        return None
    text = f"{_unquoted(found[1])}{_NAME}{_unquoted(found[2])}"
    return text if _fits(anchor, text) else None


def _unquoted(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern)
