"""What strangers wrote reaches a terminal as text, and as nothing that it obeys."""

from server.terminal.text import harmless, printable


def test_an_answer_keeps_its_lines_and_letters() -> None:
    text = "Příliš\tžluťoučký\u00a0kůň\n👩\u200d🚀 東京 שלום\n"
    assert harmless(text) == text


def test_an_answer_commands_no_terminal() -> None:
    commands = "\x1b]0;title\x07 \x1b[2J \x9b31m \r\x08 \x7f"
    assert harmless(commands) == "·]0;title· ·[2J ·31m · ·"


def test_half_a_character_is_one_that_can_be_printed() -> None:
    assert harmless("a\ud800b\n") == "a\N{REPLACEMENT CHARACTER}b\n"


def test_ends_of_lines_of_windows_are_ends_of_lines() -> None:
    assert harmless("a\r\nb") == "a\nb"


def test_a_title_is_one_line() -> None:
    assert printable("a\nb\u202ec") == "a·b·c"
    assert printable("Größe 東京 🙂") == "Größe 東京 🙂"
