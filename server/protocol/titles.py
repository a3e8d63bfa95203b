"""What people name things by: one line that cannot disguise the rest of a page, and can be seen."""

import re

from server.protocol.errors import invalid_field

TITLE_CHARACTERS = 60
# Control and bidirectional formatting characters would let a title disguise the rest of a page.
_UNSAFE_IN_TITLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
# What draws nothing: Unicode's default ignorable characters, and the blank of braille.
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# As itself and not by escapes, which Python and JSON Schema write differently.
VISIBLE = rf"[^\s\x00-\x1f\x7f-\x9f{_UNSEEN}]"
_VISIBLE = re.compile(VISIBLE)


def clean_title(text: str) -> str:
    """One line without control and bidi characters; empty if nothing of it can be seen."""
    return " ".join(_UNSAFE_IN_TITLE.sub(" ", text).split()) if _VISIBLE.search(text) else ""


def needed_line(field: str, text: str, message: str) -> str:
    """Likewise, of a field that must say something. Raises `ApiError`."""
    if not (line := clean_title(text)):
        raise invalid_field(field, message)
    return line


def given_line(field: str, text: str) -> str:
    """Likewise, of a field that may be left empty, but not look so. Raises `ApiError`."""
    return needed_line(field, text, f"nothing of this {field} can be seen") if text else ""
