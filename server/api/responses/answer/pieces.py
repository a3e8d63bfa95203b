"""`Pieces`: a text cut into the deltas in which it is sent, always at the same places.

Events are numbered, and a number must mean the same event at every worker, at any time: so where
one delta ends is decided by the text alone, not by the moments at which it came. A piece is sent
when its end is certain. The first characters are sent one by one, so that what comes first is not
late; then a piece is a word with the spaces before it, or one other character.
"""

import re
from typing import Final

OPENING: Final = 8  # characters that are sent one by one
LONGEST: Final = 16  # letters of a piece, and spaces

# Written out: what Python calls a letter changes with its version. Letters of scripts that put
# spaces between words; in others, each character is a piece.
_LETTERS: Final = "0-9A-Za-z_\u00c0-\u0dff\u1e00-\u1fff\uac00-\ud7a3"
_PIECE: Final = re.compile(
    f" {{0,{LONGEST}}}[{_LETTERS}]{{1,{LONGEST}}}| {{1,{LONGEST}}}|.", re.DOTALL
)
_MAY_GO_ON: Final = re.compile(f"(?:^|[^{_LETTERS}])[{_LETTERS}]{{1,{LONGEST - 1}}}\\Z| \\Z")


class Pieces:
    """Of one text, which comes in any parts."""

    def __init__(self) -> None:
        self._num_alone = OPENING
        self._rest = ""  # of which it is not certain yet where it ends

    def add(self, text: str) -> list[str]:
        """The pieces that more text makes certain."""
        found: list[str] = []
        if self._num_alone:
            found.extend(text[: self._num_alone])
            text = text[self._num_alone :]
            self._num_alone -= len(found)
        if not text:
            return found
        self._rest += text
        new = _PIECE.findall(self._rest)
        self._rest = ""
        if _MAY_GO_ON.search(new[-1]):
            self._rest = new.pop()
        return found + new

    def end(self) -> list[str]:
        """The last one, if there is one: nothing follows."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []
