"""Looking for markers in a text that arrives in pieces: the same ones, however it is cut.

Besides what it finds, a `Watch` says how much of the text's end may still become a marker. That
part waits; what lies before it is certain. Of patterns, as in transformers' `ResponseParser`, the
earliest match counts, among those the longest, and one that more text could change waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import regex

PATTERN_SECONDS = 1.0  # for one look; patterns are of the checkpoint's author
MAX_PENDING = 256  # characters that a pattern may hold back: what is longer is no marker


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a part of an answer begins or ends: one of some texts, or a pattern."""

    texts: tuple[str, ...] = ()
    pattern: str | None = None


class Found(NamedTuple):
    """A marker at `start` to `end`, and the number of its anchor in the watch."""

    start: int
    end: int
    number: int
    captures: Mapping[str, str]


class PatternFailed(Exception):
    """A pattern takes too much time."""


class Until:
    """The text up to the first of some texts, which arrives in pieces."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._markers = _Markers({text: 0 for text in texts})
        self.held = ""

    def feed(self, text: str, at: int) -> tuple[str, int, str]:
        """What lies before it, where the rest of `text` begins, and which was found."""
        whole = self.held + text[at:]
        match, pending = self._markers.look(whole, 0, is_end=False)
        if match is None:
            self.held = whole[pending:]
            return whole[:pending], len(text), ""
        end = len(text) - (len(whole) - match.end())
        self.held = ""
        return whole[: match.start()], end, match[0]


class Watch:
    """Some anchors that are looked for at once; the first ones win."""

    def __init__(self, anchors: Sequence[Anchor]) -> None:
        texts = {text: number for number, each in enumerate(anchors) for text in each.texts}
        self._markers = _Markers(texts) if texts else None
        self._patterns = _Patterns(
            {n: each.pattern for n, each in enumerate(anchors) if each.pattern is not None}
        )

    def look(self, text: str, at: int, *, is_end: bool) -> tuple[Found | None, int]:
        """The first marker after `at`, and from where on the text may still become one.

        Raises `PatternFailed`.
        """
        found: Found | None = None
        pending = len(text)
        if self._markers is not None:
            match, pending = self._markers.look(text, at, is_end=is_end)
            if match is not None:
                found = Found(match.start(), match.end(), self._markers.texts[match[0]], {})
        if self._patterns.is_any:
            also, also_pending = self._patterns.look(text, at, is_end=is_end)
            pending = min(pending, also_pending)
            if also is not None and (found is None or _rank(also) < _rank(found)):
                found = also
        return (found if found is not None and found.start < pending else None), pending


class _Patterns:
    """Patterns that are looked for, each with the number of its anchor."""

    def __init__(self, patterns: Mapping[int, str]) -> None:
        self._each = {n: regex.compile(each, regex.DOTALL) for n, each in patterns.items()}
        self.is_any = bool(patterns)
        any_of = "|".join(f"(?:{each})" for each in patterns.values())
        self._any = regex.compile(any_of, regex.DOTALL)
        # It never matches, so it tells what may still do: what has come to the text's end.
        self._unfinished = regex.compile(f"(?:{any_of})(?!)", regex.DOTALL)

    def look(self, text: str, at: int, *, is_end: bool) -> tuple[Found | None, int]:
        pending = len(text)
        if not is_end:
            unfinished = _search(self._unfinished, text, at, partial=True)
            start = len(text) if unfinished is None else unfinished.start()
            pending = max(start, len(text) - MAX_PENDING)
        found: Found | None = None
        if pending == at or _search(self._any, text, at) is None:
            return None, pending
        for number, pattern in self._each.items():
            match = _search(pattern, text, at)
            if match is None or match.start() == match.end():
                continue
            if match.end() == len(text) and not is_end:  # a pattern may know that it is the end
                pending = min(pending, max(match.start(), len(text) - MAX_PENDING))
            named = {k: v for k, v in match.groupdict().items() if v is not None}
            each = Found(match.start(), match.end(), number, named)
            if found is None or _rank(each) < _rank(found):
                found = each
        return found, pending


def _rank(found: Found) -> tuple[int, int]:
    """The earliest counts, and the longest of those."""
    return found.start, -found.end


@dataclass(slots=True)
class _Markers:
    """Texts that are looked for, each with the number of its anchor."""

    texts: Mapping[str, int]
    _any: re.Pattern[str] = field(init=False)
    _first: re.Pattern[str] = field(init=False)
    _beginnings: frozenset[str] = field(init=False)
    _longest: int = field(init=False)

    def __post_init__(self) -> None:
        self._any = _any_of(self.texts)
        self._first = _any_of({text[0] for text in self.texts})
        self._beginnings = frozenset(t[:n] for t in self.texts for n in range(1, len(t)))
        self._longest = max(map(len, self.texts), default=0)

    def look(self, text: str, at: int, *, is_end: bool) -> tuple[re.Match[str] | None, int]:
        match = self._any.search(text, at)
        pending = len(text) if is_end else self._pending(text, at)
        if match is not None and pending <= match.start():
            match = None
        return match, pending

    def _pending(self, text: str, at: int) -> int:
        """Where an end of the text starts that begins a marker."""
        for match in self._first.finditer(text, max(at, len(text) - self._longest + 1)):
            if text[match.start() :] in self._beginnings:
                return match.start()
        return len(text)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _search(pattern: Any, text: str, at: int, *, partial: bool = False) -> Any:
    try:
        return pattern.search(text, at, partial=partial, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise PatternFailed from None
