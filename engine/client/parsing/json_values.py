"""JSON that arrives in pieces: where a value ends, and what a text in it says."""

import json
import re

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_SCALAR_END = re.compile(r"[,\]}\s]")
_CLOSERS = {"{": "}", "[": "]"}
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
# The first half of a pair needs the second one.
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_LONGEST_HALF = 11
_LONE = re.compile("[\ud800-\udfff]")
SPACE = re.compile(r"[ \t\r\n]*")


class JsonValue:
    """Finds the end of one value. Whether it is JSON inside, nobody knows before it is whole."""

    def __init__(self) -> None:
        self.kind = ""  # its first character; a letter or digit for anything but the three
        self.is_done = False
        self.is_broken = False  # it closes what it has not opened
        self.in_string = False
        self._is_escaped = False
        self._closers: list[str] = []

    def feed(self, text: str, at: int) -> int:
        """Take more of it, from `at` on; where what was taken ends. Begins without a space."""
        if not self.kind:
            self.kind = text[at]
        if self.kind not in '{["':
            end = _SCALAR_END.search(text, at)
            self.is_done = end is not None
            return len(text) if end is None else end.start()
        while at < len(text) and not (self.is_done or self.is_broken):
            at = self._feed_string(text, at) if self.in_string else self._feed_outside(text, at)
        return at

    def _feed_string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        match = _IN_STRING.search(text, at)
        if match is None:
            return len(text)
        if match[0] == "\\":
            self._is_escaped = True
        else:
            self.in_string = False
            self.is_done = not self._closers
        return match.end()

    def _feed_outside(self, text: str, at: int) -> int:
        match = _OUTSIDE.search(text, at)
        if match is None:
            return len(text)
        if match[0] == '"':
            self.in_string = True
        elif match[0] in _CLOSERS:
            self._closers.append(_CLOSERS[match[0]])
        elif not self._closers or self._closers.pop() != match[0]:
            self.is_broken = True
            return match.start()
        else:
            self.is_done = not self._closers
        return match.end()


class JsonString:
    """What the text between two quotes says, given out as soon as it is certain."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        end = min(_start_of(_HALF_PAIR, text), _start_of(_HALF_ESCAPE, text))
        self._held = text[end:]
        return read_string(text[:end])

    def finish(self) -> str:
        """What is held at the closing quote, which ends half a pair as well."""
        held, self._held = self._held, ""
        return read_string(held)


def read_string(text: str) -> str:
    """What lies between two quotes; as it is, if that is no JSON."""
    try:
        said = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        said = text
    return _LONE.sub("\ufffd", said)


def is_object(text: str) -> bool:
    """Whether this is a JSON object, as the arguments of a call must be."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _start_of(half: re.Pattern[str], text: str) -> int:
    """Where an escape starts that is not whole; its backslash must not be escaped itself."""
    match = half.search(text, max(0, len(text) - _LONGEST_HALF))
    if match is None:
        return len(text)
    before = text[: match.start()]
    num_backslashes = len(before) - len(before.rstrip("\\"))
    return match.start() if num_backslashes % 2 == 0 else len(text)
