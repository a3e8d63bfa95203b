"""Marked text: text in which a control token is one character that no text can have.

What a model writes may spell `<tool_call>`, and so may what it repeats of a user's. Where the
vocabulary has a token for that, the token alone counts. So a parser reads text in which each of
these tokens is a lone surrogate, which no decoder writes, and which everything that looks for texts
finds like any other character.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

FIRST_MARK = 0xD800
MAX_MARKS = 0x800
MARK = re.compile("[\ud800-\udfff]")
_ALL_BUT = re.compile(r"(?<!\\)\[\^\]?(?!-)")  # the beginning of such a class


class AddedToken(NamedTuple):
    """A token that stands beside a vocabulary's own, with its text."""

    token_id: int
    text: str
    is_shown: bool  # decoding an answer writes its text; of special tokens it does not


class Marks:
    """The control tokens that a format knows, of those that a vocabulary has."""

    def __init__(self, tokens: Iterable[AddedToken] = (), texts: Sequence[str] = ()) -> None:
        """`texts` are the format's markers, as they are or as parts of patterns."""
        spelled = "\0".join(text.replace("\\", "") for text in texts)  # patterns quote characters
        known = [each for each in tokens if each.text and each.text in spelled][:MAX_MARKS]
        characters = [chr(FIRST_MARK + number) for number in range(len(known))]
        self.characters: Mapping[int, str] = {
            each.token_id: character for each, character in zip(known, characters, strict=True)
        }
        self.tokens: Mapping[str, AddedToken] = dict(zip(characters, known, strict=True))
        self._shown = {
            character: each.text if each.is_shown else ""
            for each, character in zip(known, characters, strict=True)
        }
        by_text = {each.text: mark for each, mark in zip(known, characters, strict=True)}
        longest_first = sorted(by_text, key=len, reverse=True)
        self._replaced = [(re.compile(_loosely(text)), by_text[text]) for text in longest_first]

    def mark(self, marker: str) -> str:
        """A marker of the format as it is in marked text."""
        for spelled, character in self._replaced:
            marker = spelled.sub(character, marker)
        return marker

    def mark_pattern(self, pattern: str) -> str:
        """A pattern as it is in marked text. A token is none of the characters of a class."""
        marked = self.mark(pattern)
        if not self.characters:
            return marked
        return _ALL_BUT.sub(lambda match: match[0] + "\ud800-\udfff", marked)

    def mark_shown(self, text: str) -> str:
        """A text that an answer may show, as a stop string, as it is in marked text."""
        marked = self.mark(text)
        return text if any(self._shown.get(each) == "" for each in marked) else marked

    def plain(self, text: str) -> str:
        """Marked text as an answer shows it."""
        if text.isascii() or MARK.search(text) is None:
            return text
        return MARK.sub(lambda match: self._shown.get(match[0], ""), text)


def is_mark(text: str) -> bool:
    """Whether this is the character of a control token."""
    return MARK.fullmatch(text) is not None


def _loosely(text: str) -> str:
    r"""A pattern for `text` as it is, and as a pattern may have it: `<\|end\|>`."""
    return "".join(r"\\?" + re.escape(character) for character in text)
