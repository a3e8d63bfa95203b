"""A file → a conversation to be stored, held to the limits of the live path.

The user who imports a file owns the session. Ids in the file are labels that link messages; the
stored ones are fresh. Roles are those of the live path, where a client answers calls of tools and
may bring instructions.
"""

import time
from collections.abc import Mapping
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
from sessions.model.records import MESSAGE, Message
from sessions.store.copies import Draft

MAX_ANSWER_BYTES = 512 * 1024  # more than the longest answer in the longest tokens
MAX_CALLS = 2048  # of one answer: each takes several tokens
MAX_USAGE_TOKENS = 10_000_000  # of one answer: more than any context, and no sum gets out of hand
Label = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)]


class ImportedText(Struct, frozen=True):
    """One part of a message's content; with `call_id`, what a tool gave back."""

    type: Literal["text"]
    text: str
    call_id: Label | None = None


class ImportedCall(Struct, frozen=True):
    """A call of a tool in an answer."""

    call_id: Label
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: str
    id: Label | None = None
    status: Literal["completed", "incomplete", "failed"] = "completed"


class ImportedOutput(Struct, frozen=True):
    """What became of a call that a server carried out."""

    call_id: Label
    server_label: Annotated[str, Meta(min_length=1, max_length=64)]
    output: str
    status: Literal["completed", "failed", "denied", "cancelled", "unknown"]
    id: Label | None = None
    code: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class ImportedUsage(Struct, frozen=True):
    """Tokens of an answer."""

    input_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    output_tokens: Tokens = 0


class ImportedMessage(Struct, frozen=True):
    """One message; its parent must stand before it."""

    id: Label
    role: Literal["user", "assistant", "tool", "system", "developer"]
    content: Annotated[list[ImportedText], Meta(max_length=MAX_CALLS)]  # a part for each output
    parent_id: Label | None = None
    status: Literal["completed", "interrupted", "failed"] = "completed"
    created_at: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    model: Annotated[str, Meta(max_length=200)] | None = None
    usage: ImportedUsage | None = None
    reasoning: str | None = None  # of an answer
    tool_calls: Annotated[list[ImportedCall], Meta(max_length=MAX_CALLS)] = []  # likewise
    tool_outputs: Annotated[list[ImportedOutput], Meta(max_length=MAX_CALLS)] = []  # of these
    redacted: Annotated[list[Label], Meta(max_length=2 * MAX_CALLS)] = []  # what is gone of it


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
    known: dict[str | None, ImportedMessage] = {}
    messages: list[Message] = []
    for place, imported in enumerate(body.messages):
        where = f"messages[{place}]"
        _check_place(imported, known, where)
        ids[imported.id] = new_message_id()
        known[imported.id] = imported
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
                tool_calls=_calls(imported, where),
                tool_outputs=_call_outputs(imported, where),
                outputs=_outputs(imported, known.get(imported.parent_id), where),
                redacted=imported.redacted or None,
            )
        )
    if body.head is not None and body.head not in ids:
        raise invalid_field("head", "head is no message of the file")
    head = ids[body.head] if body.head is not None else (messages[-1].id if messages else None)
    title = clean_title(body.session.title)
    return Draft(title, model, body.session.settings.given(), messages, head)


def _check_place(
    imported: ImportedMessage, known: Mapping[str | None, ImportedMessage], where: str
) -> None:
    """A tree: every id once, every parent before its children."""
    if imported.id in known:
        raise invalid_field(f"{where}.id", "this id is there twice")
    if imported.parent_id is not None and imported.parent_id not in known:
        raise invalid_field(f"{where}.parent_id", "no message before this one has that id")


def _calls(imported: ImportedMessage, where: str) -> list[dict[str, str]] | None:
    """As they are stored; together as long as an answer at most."""
    calls = imported.tool_calls if imported.role == "assistant" else []
    if sum(len(call.arguments.encode()) for call in calls) > MAX_ANSWER_BYTES:
        message = f"the arguments of a message's calls are longer than {MAX_ANSWER_BYTES} bytes"
        raise ApiError("message_too_large", message, param=f"{where}.tool_calls")
    if len({call.call_id for call in calls}) < len(calls):
        raise invalid_field(f"{where}.tool_calls", "two calls have the same call_id")
    stored = [
        {
            "type": "function_call",
            "id": call.id or call.call_id,
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
            "status": call.status,
        }
        for call in calls
    ]
    return stored or None


def _call_outputs(imported: ImportedMessage, where: str) -> list[dict[str, str]] | None:
    """As they are stored; each of a call of the message, together as long as an answer at most."""
    names = {call.call_id: call.name for call in imported.tool_calls}
    outputs = imported.tool_outputs if imported.role == "assistant" else []
    if sum(len(output.output.encode()) for output in outputs) > MAX_ANSWER_BYTES:
        message = f"the outputs of a message's calls are longer than {MAX_ANSWER_BYTES} bytes"
        raise ApiError("message_too_large", message, param=f"{where}.tool_outputs")
    call_ids = {output.call_id for output in outputs}
    if len(call_ids) < len(outputs) or not call_ids <= names.keys():
        problem = "outputs are those of the message's calls, one for each"
        raise invalid_field(f"{where}.tool_outputs", problem)
    stored = [
        {
            "type": "function_call_output",
            "id": output.id or output.call_id,
            "call_id": output.call_id,
            "name": names[output.call_id],
            "server_label": output.server_label,
            "output": output.output,
            "status": output.status,
            **({} if output.code is None else {"code": output.code}),
        }
        for output in outputs
    ]
    return stored or None


def _outputs(
    imported: ImportedMessage, parent: ImportedMessage | None, where: str
) -> list[dict[str, str]] | None:
    """Of each call of the answer before, what its tool gave back."""
    if imported.role != "tool":
        return None
    calls = [] if parent is None else parent.tool_calls
    called = sorted(call.call_id for call in calls if call.status == "completed")
    if not called or sorted(part.call_id or "" for part in imported.content) != called:
        problem = "outputs follow the answer with their calls, one for each"
        raise invalid_field(f"{where}.content", problem)
    return [{"call_id": part.call_id or "", "output": part.text} for part in imported.content]


def _reasoning(imported: ImportedMessage, where: str) -> str | None:
    """What a model has thought is the text of an answer, and as long at most."""
    reasoning = imported.reasoning if imported.role == "assistant" else None
    if reasoning is not None and len(reasoning.encode()) > MAX_ANSWER_BYTES:
        message = f"a message has thought more than {MAX_ANSWER_BYTES} bytes"
        raise ApiError("message_too_large", message, param=f"{where}.reasoning")
    return reasoning or None


def _text(imported: ImportedMessage, where: str) -> str:
    text = "".join(part.text for part in imported.content)
    is_question = imported.role in ("user", "system", "developer")
    # Outputs may be a client's and the server's, and lines that say why there is none.
    most = MAX_INPUT_BYTES if is_question else MAX_ANSWER_BYTES
    if len(text.encode()) > most:
        message = f"a message is longer than {most} bytes"
        raise ApiError("message_too_large", message, param=f"{where}.content")
    if is_question and not text.strip() and MESSAGE not in imported.redacted:
        raise invalid_field(f"{where}.content", "a user's message is empty")
    return text
