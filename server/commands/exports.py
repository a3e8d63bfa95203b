"""A conversation as a file: JSON that can be imported again, or Markdown to read."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

from server.protocol.titles import clean_title
from sessions.model.records import Message, Session

FORMAT = "parley.session"
VERSION = 1
MAX_NAME_CHARACTERS = 80
BREATHER_BYTES = 64 * 1024  # other work of the loop comes in between

_BACKTICKS = re.compile("`+")
_UNSAFE_IN_NAME = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f]+')
_UNSAFE_IN_FALLBACK = re.compile(r"[^A-Za-z0-9 ._-]+")


async def as_json(session: Session, messages: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    """The whole tree, in order of creation."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "session": {
            "title": session.title,
            "model": session.model,
            "settings": session.settings,
            "created_at": session.created_at,
            "updated_at": session.updated_at,
        },
        "head": session.head,
    }
    yield orjson.dumps(head)[:-1] + b',"messages":['
    separator = b"\n"
    async for message in messages:
        yield separator + orjson.dumps(_exported(message))
        separator = b",\n"
    yield b"\n]}\n"


def _exported(message: Message) -> dict[str, Any]:
    """A message without what means something only on this server."""
    exported = message.wire()
    exported.pop("response_id", None)
    return exported


async def as_markdown(session: Session, messages: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    """The path to the head."""
    created = datetime.fromtimestamp(session.created_at / 1000, UTC)
    title = session.title or "Untitled"
    yield f"# {title}\n\n{created:%Y-%m-%d %H:%M} UTC, {session.model}\n".encode()
    names: dict[str, str] = {}  # of the tools that the answer before has called
    async for message in messages:
        note = "" if message.status == "completed" else f" ({message.status})"
        text = _markdown(message, names)
        names = {call["call_id"]: call["name"] for call in message.tool_calls or ()}
        yield f"\n## {message.role.capitalize()}{note}\n\n{text}\n".encode()


def _markdown(message: Message, names: Mapping[str, str]) -> str:
    """Its text, and what tools were called with and gave back, so that none of it is Markdown."""
    if message.outputs is not None:
        given = [(names.get(each["call_id"], "A tool"), each["output"]) for each in message.outputs]
        return "\n\n".join(f"{_named(name)} gave back:\n\n{_fenced(it)}" for name, it in given)
    calls = [
        f"Calls {_named(call['name'])} with:\n\n{_fenced(call['arguments'], 'json')}"
        for call in message.tool_calls or ()
    ]
    return "\n\n".join((*([message.text] if message.text or not calls else []), *calls))


def _named(name: str) -> str:
    return f"`{' '.join(name.replace('`', ' ').split())}`"


def _fenced(text: str, language: str = "") -> str:
    """As a block of code, whose fence is longer than any in it."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


async def breathing(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same parts in larger pieces, with a pause after each."""
    piece: list[bytes] = []
    size = 0
    async for part in parts:
        piece.append(part)
        size += len(part)
        if size >= BREATHER_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
            await asyncio.sleep(0)
    yield b"".join(piece)


def attachment(title: str, extension: str) -> str:
    """`Content-Disposition` for a file of that title, as RFC 6266 and RFC 5987 say."""
    name = _UNSAFE_IN_NAME.sub(" ", clean_title(title))[:MAX_NAME_CHARACTERS].strip(" .")
    name = " ".join(name.split()) or "chat"
    fallback = _UNSAFE_IN_FALLBACK.sub("_", name).strip(" .") or "chat"
    encoded = quote(f"{name}.{extension}".encode("utf-8", "replace"), safe="")
    return f"attachment; filename=\"{fallback}.{extension}\"; filename*=UTF-8''{encoded}"
