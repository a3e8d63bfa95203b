"""Text for a terminal: how wide it may be, and words of strangers made safe."""

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console  # imported where it is used: it takes 40 ms

UNBOUNDED_WIDTH = 10_000
UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}  # of spans of time, as they are typed
_LIMIT = re.compile(r"Expected `(?:int|(str))`(?: of length)? ([<>])= (\d+)")


def output_console() -> "Console":
    """Standard output, as wide as its terminal; a pipe or a file bounds nothing."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=UNBOUNDED_WIDTH)


def harmless(text: str) -> str:
    """The text as it is, but for control characters other than ends of lines and tabs.

    A terminal obeys those: they move its cursor, rename its window, or write to its clipboard. Half
    a character, which no terminal can be sent, becomes one that says so.
    """
    text = text.replace("\r", "")  # which also stands before an end of a line
    if text.isprintable():
        return text
    return "".join(map(_harmless, text))


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return "·" if category == "Cc" and character not in "\n\t" else character


def printable(text: str) -> str:
    """The text on one line, with a dot for each character that a terminal might obey.

    Control characters move cursors and rename windows; formatting characters hide or reorder.
    """
    return "".join(character if character.isprintable() else "·" for character in text)


def plain_limit(message: str, *, in_seconds: bool = False) -> str:
    """A refusal of the server's in words, where it says how much a field may hold."""

    def words(found: "re.Match[str]") -> str:
        is_text, sign, number = found.groups()
        amount = span(int(number)) if in_seconds else f"{int(number):,}"
        unit = " characters" if is_text else ""
        return f"at {'most' if sign == '<' else 'least'} {amount}{unit}"

    return _LIMIT.sub(words, message)


def span(seconds: int) -> str:
    """A span of time as it is typed, in its largest unit: 90s, 30m, 4h or 7d."""
    unit = next(unit for unit, length in UNITS.items() if seconds % length == 0)
    return f"{seconds // UNITS[unit]}{unit}"
