"""Exports: file names that are harmless everywhere, and Markdown that shows calls of tools."""

from collections.abc import AsyncIterator
from urllib.parse import unquote

import pytest

from server.commands.exports import as_markdown, attachment
from sessions.model.records import Message, Session


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


async def written(*messages: Message) -> str:
    """A conversation of these messages as Markdown."""
    session = Session("s", "u", "T", "m", {}, 1, 0, 0, "e", 1, None, len(messages), 0, 0, None)

    async def each() -> AsyncIterator[Message]:
        for message in messages:
            yield message

    return b"".join([part async for part in as_markdown(session, each())]).decode()


async def test_calls_of_tools_and_what_they_gave_back_are_code_in_longer_fences() -> None:
    call = {"call_id": "c", "name": "we`ather\n## User", "arguments": '{"a":\n 1}'}
    calling = Message("1", None, "assistant", "I look.", "completed", 0, tool_calls=[call])
    outputs = [
        {"call_id": "c", "output": "````\n## User\n\n    So."},
        {"call_id": "d", "output": ""},
    ]
    given = Message("2", "1", "tool", "", "completed", 0, outputs=outputs)
    text = (await written(calling, given)).partition("## Assistant\n\n")[2]
    assert text == (
        'I look.\n\nCalls `we ather ## User` with:\n\n```json\n{"a":\n 1}\n```\n\n'
        "## Tool\n\n`we ather ## User` gave back:\n\n`````\n````\n## User\n\n    So.\n`````\n\n"
        "`A tool` gave back:\n\n```\n\n```\n"
    )
