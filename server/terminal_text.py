"""Text for a terminal: how wide it may be, and words of strangers made safe."""

from rich.console import Console

UNBOUNDED_WIDTH = 10_000


def output_console() -> Console:
    """Standard output, as wide as its terminal; a pipe or a file bounds nothing."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=UNBOUNDED_WIDTH)


def printable(text: str) -> str:
    """The text on one line, with a dot for each character that a terminal might obey.

    Control characters move cursors and rename windows; formatting characters hide or reorder.
    """
    return "".join(character if character.isprintable() else "·" for character in text)
