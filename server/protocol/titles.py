"""Titles of sessions: one line that cannot disguise the rest of a page."""

import re

TITLE_CHARACTERS = 60
# Control and bidirectional formatting characters would let a title disguise the rest of a page.
_UNSAFE_IN_TITLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")


def clean_title(text: str) -> str:
    """One line without control and bidi characters."""
    return " ".join(_UNSAFE_IN_TITLE.sub(" ", text).split())
