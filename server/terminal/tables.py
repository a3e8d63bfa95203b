"""Tables for the terminal, whose every word is shown as text, whoever wrote it."""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from server.terminal.text import output_console, printable

if TYPE_CHECKING:
    from rich.table import Table as Drawn  # imported where one is drawn: it takes 40 ms


class Cell(NamedTuple):
    """A text in a colour, or `dim`."""

    text: str
    style: str = ""


Word = Cell | str | int | None


class Table:
    """Rows below headings, and perhaps a title above them.

    Nothing is left out where a terminal is narrow: long words go on in the next line. Columns of
    `numbers` end at the right, and are never broken.
    """

    def __init__(self, *headings: str, numbers: Collection[str] = (), title: str = "") -> None:
        self._title = printable(title)
        self._headings = headings
        self._numbers = numbers
        self.rows: list[tuple[Cell, ...]] = []

    def add(self, *words: Word) -> None:
        """A row; `None` is an empty place."""
        assert len(words) == len(self._headings)
        self.rows.append(tuple(map(_cell, words)))

    def show(self) -> None:
        """Print it to standard output."""
        if self._title:
            print(self._title)
        output_console().print(self.drawn())

    def drawn(self) -> "Drawn":
        from rich.table import Table as Drawn
        from rich.text import Text

        table = Drawn(box=None, header_style="dim", pad_edge=False)
        for heading in self._headings:
            is_number = heading in self._numbers
            table.add_column(
                heading,
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(Text(cell.text, cell.style) for cell in row))
        return table


def _cell(word: Word) -> Cell:
    if not isinstance(word, Cell):
        word = Cell("" if word is None else str(word))
    return word._replace(text=printable(word.text))
