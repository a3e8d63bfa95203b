"""A file → a conversation to be stored, held to the limits of the live path.

The user who imports a file owns the session. Ids in the file are labels that link messages; the
stored ones are fresh. Roles are user and assistant: a file cannot bring text of the system or of a
tool.
"""

import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from server.protocol.client_frames import (
    MAX_INPUT_BYTES,
    MAX_INTEGER,
    Settings,
    Title,
    check_system,
    field_error,
)
from server.protocol.errors import ApiError, invalid_field
from server.protocol.titles import clean_title
from sessions.model.ids import new_message_id
from sessions.model.records import Message
from sessions.store.copies import Draft

MAX_ANSWER_BYTES = 512 * 1024  # more than the longest answer in the longest tokens
MAX_USAGE_TOKENS = 10_000_000  # of one answer: more than any context, and no sum gets out of hand
Label = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)]


class ImportedText(Struct, frozen=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class ImportedUsage(Struct, frozen=True):
    """Tokens of an answer."""

    input_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    output_tokens: Tokens = 0


class ImportedMessage(Struct, frozen=True):
    """One message; its parent must stand before it."""

    id: Label
    role: Literal["user", "assistant"]
    content: Annotated[list[ImportedText], Meta(max_length=64)]
    parent_id: Label | None = None
    status: Literal["completed", "interrupted", "failed"] = "completed"
    created_at: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    model: Annotated[str, Meta(max_length=200)] | None = None
    usage: ImportedUsage | None = None
    reasoning: str | None = None  # of an answer


class ImportedSession(Struct, frozen=True):
    """What the new session is given; the rest of an exported one is left out."""

    title: Title = ""
    settings: Settings = Settings()


class ImportBody(Struct, frozen=True):
    """What `GET /v1/sessions/{session_id}/export?format=json` gave."""

    format: Literal["parley.session"]
    version: Literal[1]
    messages: list[ImportedMessage]
    session: ImportedSession = ImportedSession()
    head: Label | None = None


_decode = msgspec.json.Decoder(ImportBody).decode


def parse_import(data: bytes, model: str) -> Draft:
    """The bytes of a file → what to store. Raises `ApiError`. Slow: call it beside the loop."""
    try:
        body = _decode(data)
    except msgspec.ValidationError as error:
        raise field_error(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ApiError("invalid_json", "this is not valid JSON") from error
    check_system(body.session.settings)
    now_ms = time.time_ns() // 1_000_000
    ids: dict[str, str] = {}
    roles: dict[str | None, str] = {}
    messages: list[Message] = []
    for place, imported in enumerate(body.messages):
        where = f"messages[{place}]"
        _check_place(imported, ids, roles, where)
        ids[imported.id] = new_message_id()
        roles[imported.id] = imported.role
        messages.append(
            Message(
                ids[imported.id],
                None if imported.parent_id is None else ids[imported.parent_id],
                imported.role,
                _text(imported, where),
                imported.status,
                now_ms if imported.created_at is None else imported.created_at,
                usage=None if imported.usage is None else msgspec.to_builtins(imported.usage),
                model=imported.model,
                reasoning=_reasoning(imported, where),
            )
        )
    if body.head is not None and body.head not in ids:
        raise invalid_field("head", "head is no message of the file")
    head = ids[body.head] if body.head is not None else (messages[-1].id if messages else None)
    title = clean_title(body.session.title)
    return Draft(title, model, body.session.settings.given(), messages, head)


def _check_place(
    imported: ImportedMessage, ids: dict[str, str], roles: dict[str | None, str], where: str
) -> None:
    """A tree: every id once, every parent before its children, answers under questions."""
    if imported.id in ids:
        raise invalid_field(f"{where}.id", "this id is there twice")
    if imported.parent_id is not None and imported.parent_id not in ids:
        raise invalid_field(f"{where}.parent_id", "no message before this one has that id")
    if imported.role == "assistant" and roles.get(imported.parent_id) != "user":
        raise invalid_field(f"{where}.parent_id", "an answer follows a user's message")


def _reasoning(imported: ImportedMessage, where: str) -> str | None:
    """What a model has thought is the text of an answer, and as long at most."""
    reasoning = imported.reasoning if imported.role == "assistant" else None
    if reasoning is not None and len(reasoning.encode()) > MAX_ANSWER_BYTES:
        message = f"a message has thought more than {MAX_ANSWER_BYTES} bytes"
        raise ApiError("message_too_large", message, param=f"{where}.reasoning")
    return reasoning or None


def _text(imported: ImportedMessage, where: str) -> str:
    text = "".join(part.text for part in imported.content)
    is_question = imported.role == "user"
    most = MAX_INPUT_BYTES if is_question else MAX_ANSWER_BYTES
    if len(text.encode()) > most:
        message = f"a message is longer than {most} bytes"
        raise ApiError("message_too_large", message, param=f"{where}.content")
    if is_question and not text.strip():
        raise invalid_field(f"{where}.content", "a user's message is empty")
    return text
