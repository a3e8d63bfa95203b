"""Lines and tables of a run, which takes hours: to watch it, or to read its output later."""

import sys

from rich.console import Console

FILE_WIDTH = 120  # where there is no terminal to ask

console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)


def say(text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    say(text, "yellow")
