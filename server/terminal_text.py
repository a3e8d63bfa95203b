"""Words of strangers, made safe for a terminal."""


def printable(text: str) -> str:
    """The text on one line, with a dot for each character that a terminal might obey.

    Control characters move cursors and rename windows; formatting characters hide or reorder.
    """
    return "".join(character if character.isprintable() else "·" for character in text)
