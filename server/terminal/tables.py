"""Tables for the terminal, whose every word is shown as text, whoever wrote it."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from server.terminal.text import UNBOUNDED_WIDTH, output_console, printable

if TYPE_CHECKING:
    from rich.table import Table as Drawn  # imported where one is drawn: it takes 40 ms

LEAST_WIDTH = 10  # of a column that may be broken
MAX_CHARACTERS = 200  # of a word in a terminal: nobody's name fills the screen
GAP = 1


class Cell(NamedTuple):
    """A text in a colour, or `dim`."""

    text: str
    style: str = ""


Word = Cell | str | int | None


class Table:
    """Rows below headings, and perhaps a title above them.

    Columns of `numbers` end at the right; they, and those that are `whole`, are never broken. Long
    words of others go on in the next line. Where a terminal is too narrow for that, each row is
    drawn as lines, a line for each word.
    """

    def __init__(
        self,
        *headings: str,
        numbers: Collection[str] = (),
        whole: Collection[str] = (),
        title: str = "",
    ) -> None:
        self._title = printable(title)
        self._headings = headings
        self._numbers = numbers
        self._whole = {*numbers, *whole}
        self.rows: list[tuple[Cell, ...]] = []

    def add(self, *words: Word) -> None:
        """A row; `None` is an empty place."""
        assert len(words) == len(self._headings)
        self.rows.append(tuple(map(_cell, words)))

    def show(self) -> None:
        """Print it to standard output."""
        if self._title:
            print(self._title)
        console = output_console()
        console.print(self.drawn(console.width))

    def drawn(self, width: int) -> "Drawn":
        """For so many columns."""
        return self._as_rows(width) if self._least_width() <= width else self._as_lines(width)

    def _least_width(self) -> int:
        from rich.cells import cell_len

        least = 0
        for heading, *words in zip(self._headings, *_texts(self.rows), strict=True):
            widest = max(map(cell_len, (heading, *words)))
            least += GAP + (widest if heading in self._whole else min(widest, LEAST_WIDTH))
        return least

    def _as_rows(self, width: int) -> "Drawn":
        from rich.table import Table as Drawn
        from rich.text import Text

        table = Drawn(box=None, header_style="dim", pad_edge=False)
        for heading in self._headings:
            table.add_column(
                heading,
                justify="right" if heading in self._numbers else "left",
                no_wrap=heading in self._whole,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(Text(_cut(cell.text, width), cell.style) for cell in row))
        return table

    def _as_lines(self, width: int) -> "Drawn":
        from rich.table import Table as Drawn
        from rich.text import Text

        table = Drawn(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for number, row in enumerate(self.rows):
            if number:
                table.add_row()
            for heading, cell in zip(self._headings, row, strict=True):
                if cell.text:
                    table.add_row(heading, Text(_cut(cell.text, width), cell.style))
        return table


def _texts(rows: Iterable[tuple[Cell, ...]]) -> Iterable[list[str]]:
    return ([cell.text for cell in row] for row in rows)


def _cut(text: str, width: int) -> str:
    """A pipe gets every word."""
    if width >= UNBOUNDED_WIDTH or len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}…"


def _cell(word: Word) -> Cell:
    if not isinstance(word, Cell):
        word = Cell("" if word is None else str(word))
    return word._replace(text=printable(word.text))
