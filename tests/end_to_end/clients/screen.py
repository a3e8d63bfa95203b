"""What a terminal shows of what a program writes: its lines, and those that scrolled away.

It obeys what prompt_toolkit and Rich write, and fails at anything else. It breaks long lines and
moves by columns as xterm does; where it is made narrower, what no longer fits is gone.
"""

import re
import unicodedata

from prompt_toolkit.utils import get_cwidth

_CONTROL = re.compile(
    r"\x1b\[([?>]?)([\d;]*)([A-Za-z])|\x1b([=>78])|\x1b\][^\x07]*\x07|[\x00-\x1f]"
)
_INCOMPLETE = re.compile(r"\x1b(\[[\d;?>]*|\][^\x07]*)?\Z")


class Screen:
    """`lines` are all of them, from the first that scrolled away to the last that is shown."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells: list[list[str]] = [[]]  # "" behind a wide character
        self._kept = self._cells  # while a program takes the whole screen
        self._row = self._column = 0
        self._rest = ""
        self._wraps = True
        self._is_full = False  # the last column was written: the next character goes on below

    @property
    def lines(self) -> list[str]:
        return ["".join(cells).rstrip() for cells in self._cells]

    @property
    def shown(self) -> list[str]:
        return self.lines[self._top :]

    @property
    def _top(self) -> int:
        return max(0, len(self._cells) - self.rows)

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        for cells in self._cells[self._top :]:
            del cells[columns:]
        self._column, self._is_full = min(self._column, columns - 1), False

    def write(self, text: str) -> None:
        text = self._rest + text
        incomplete = _INCOMPLETE.search(text)
        self._rest = incomplete[0] if incomplete else ""
        text = text.removesuffix(self._rest)
        place = 0
        for found in _CONTROL.finditer(text):
            self._put(text[place : found.start()])
            self._obey(found)
            place = found.end()
        self._put(text[place:])

    def _put(self, text: str) -> None:
        for character in text:
            width = get_cwidth(character)
            if width == 0 or unicodedata.combining(character):
                continue
            if self._wraps and (self._is_full or self._column + width > self.columns):
                self._column = 0
                self._down()
            cells = self._cells[self._row]
            cells += [" "] * (self._column + width - len(cells))
            cells[self._column : self._column + width] = [character, *[""] * (width - 1)]
            self._column += width
            self._is_full = self._column >= self.columns
            self._column = min(self._column, self.columns - 1) if self._is_full else self._column

    def _down(self) -> None:
        self._row += 1
        self._is_full = False
        if self._row == len(self._cells):
            self._cells.append([])

    def _obey(self, found: "re.Match[str]") -> None:
        private, given, command, escape = found.groups()
        if command is None:
            self._control("" if escape or found[0][0] == "\x1b" else found[0])
            return
        numbers = [int(number or 0) for number in given.split(";")]
        count = max(1, numbers[0])
        if command == "m":
            return
        if private:
            if given == "7":
                self._wraps = command == "h"
            elif given == "1049":
                self._switch(command == "h")
            return
        self._is_full = False
        if command == "A":
            self._row = max(self._top, self._row - count)
        elif command == "B":
            self._row = min(len(self._cells) - 1, self._row + count)
        elif command == "C":
            self._column = min(self.columns - 1, self._column + count)
        elif command == "D":
            self._column = max(0, self._column - count)
        elif command == "H":
            row, column = (*numbers, 0)[:2]
            self._row, self._column = self._top + max(0, row - 1), max(0, column - 1)
            while self._row >= len(self._cells):
                self._cells.append([])
        elif command == "K":
            del self._cells[self._row][self._column :]
        elif command == "J":
            del self._cells[self._row][self._column :]
            if numbers[0] == 0:
                del self._cells[self._row + 1 :]
        elif command not in "hlqtn":
            raise AssertionError(f"this terminal does not know {found[0]!r}")

    def _switch(self, to_other: bool) -> None:
        """To the screen of programs that take all of it, or back to what was there before."""
        if to_other:
            self._kept, self._cells = self._cells, [[] for _ in range(self.rows)]
        else:
            self._cells = self._kept
        self._row, self._column = len(self._cells) - 1, 0

    def _control(self, character: str) -> None:
        if character == "\r":
            self._column, self._is_full = 0, False
        elif character == "\n":
            self._down()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character not in ("", "\x07", "\x0f"):
            raise AssertionError(f"this terminal does not know {character!r}")
