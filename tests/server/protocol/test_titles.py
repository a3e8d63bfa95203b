"""Names, titles and reasons: one line, which can be seen and disguises nothing."""

import re

import pytest

from server.protocol.errors import ApiError
from server.protocol.titles import VISIBLE, clean_title, given_line, needed_line

BLANK = [
    " \t\r\n\x0b\x0c",
    "\x00\x07\x1b\x7f\x9b",
    "\u00a0\u2003\u3000\u2028\u2029\u0085",
    "\u200b\u200c\u200d\u2060\ufeff",
    "\u00ad\u034f\u115f\u1160\u3164\uffa0\u180e\u17b4\u2800",
    "\u061c\u200e\u200f\u202a\u202e\u2066\u2069",
    "\ufe0f\U000e0020\U000e01ef\U0001d173",
]


@pytest.mark.parametrize("text", BLANK)
def test_what_nobody_can_see_is_no_text(text: str) -> None:
    assert clean_title(text) == ""
    assert re.search(VISIBLE, text) is None
    with pytest.raises(ApiError) as refused:
        needed_line("name", text, "a name is needed")
    assert (refused.value.code, refused.value.param) == ("invalid_field", "name")
    with pytest.raises(ApiError) as refused:
        given_line("reason", text)
    assert (refused.value.code, refused.value.param) == ("invalid_field", "reason")


@pytest.mark.parametrize(
    "text", ["a", "é", "ქ", "한", "👩\u200d👧", "می\u200cخواهم", "❤\ufe0f", "\u0301"]
)
def test_letters_of_all_scripts_stay_as_they_are(text: str) -> None:
    assert clean_title(text) == given_line("title", text) == text


def test_a_line_has_no_control_and_no_bidi_characters() -> None:
    assert clean_title(" \x1b[31mred\u202e\n\u061cline\r ") == "[31mred line"
    assert given_line("title", "") == ""
