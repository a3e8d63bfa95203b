"""What HTTP answers hold beside the objects of the frames; the OpenAPI document is made from it."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from server.protocol.objects import (
    ErrorObject,
    MessageObject,
    Milliseconds,
    SessionObject,
    TextPart,
)


class ErrorBody(Struct, frozen=True):
    """The body of every refusal."""

    error: ErrorObject


class SessionPage(Struct, frozen=True):
    """Newest updated first; `next_cursor` leads to older ones until it is null."""

    sessions: list[SessionObject]
    next_cursor: str | None


class MessagePage(Struct, frozen=True):
    """A part of one path, oldest first; `has_more`: there are older ones."""

    messages: list[MessageObject]
    has_more: bool


class Ticket(Struct, frozen=True):
    """For one handshake: `/v1/ws?ticket=…`."""

    ticket: str
    expires_in_s: int


class LoginCode(Struct, frozen=True):
    """For one login: open `path` in a browser."""

    code: str
    path: str


class ShareLink(Struct, frozen=True):
    """`path` shows what the session's messages were when it was shared."""

    id: str
    path: str
    shared_at: Milliseconds


class SharedMessage(Struct, frozen=True):
    """A message without ids."""

    role: Literal["user", "assistant"]
    content: list[TextPart]
    status: Literal["completed", "interrupted", "failed"]
    created_at: Milliseconds
    model: str | None = None


class SharedSession(Struct, frozen=True):
    """What a share link shows."""

    id: str
    title: str
    shared_at: Milliseconds
    messages: list[SharedMessage]


class Version(Struct, frozen=True):
    version: str


class Alive(Struct, frozen=True):
    status: Literal["ok"]


class Model(Struct, frozen=True, omit_defaults=True):
    """As OpenAI lists models; `max_model_len` is there once the engine is.

    `parent`, in vLLM's word, is the model of which an adapter makes this one. `context_length`,
    `format` and `size_bytes` are what its files say; one that is not loaded is when it is asked.
    """

    id: str
    object: Literal["model"]
    created: Annotated[int, Meta(ge=0)]
    owned_by: str
    max_model_len: Annotated[int, Meta(ge=1)] | None = None
    parent: str | None = None
    state: Literal["not_loaded", "loading", "loaded", "unloading", "failed"] | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    problem: str | None = None
    format: str | None = None
    context_length: Annotated[int, Meta(ge=1)] | None = None
    size_bytes: Annotated[int, Meta(ge=0)] | None = None


class ModelList(Struct, frozen=True):
    object: Literal["list"]
    data: list[Model]


Document = dict[str, Any]  # JSON as it is: a document that describes itself
