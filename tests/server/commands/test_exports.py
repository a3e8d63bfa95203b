"""Exports: file names that are harmless everywhere."""

from urllib.parse import unquote

import pytest

from server.commands.exports import attachment


@pytest.mark.row("B43")
@pytest.mark.parametrize(
    ("title", "fallback", "name"),
    [
        ("Tulips", "Tulips", "Tulips"),
        ("Grüße 🙂", "Gr_e _", "Grüße 🙂"),
        ('a"b\\c/d:e', "a b c d e", "a b c d e"),
        ("a\r\nb\x00c", "a b c", "a b c"),
        ("..", "chat", "chat"),
        ("漢字", "_", "漢字"),
        ("x" * 300, "x" * 80, "x" * 80),
    ],
)
def test_the_file_name_of_an_export_has_a_plain_and_an_encoded_form(
    title: str, fallback: str, name: str
) -> None:
    header = attachment(title, "json")
    assert header.startswith(f'attachment; filename="{fallback}.json"; ')
    assert unquote(header.partition("; filename*=UTF-8''")[2]) == f"{name}.json"
    assert header.isascii() and "\r" not in header and "\n" not in header
