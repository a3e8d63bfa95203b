"""What the store hands out: sessions, messages, runs, events.

Everything here is frozen and can be encoded by orjson. Times (`*_at`) are integer milliseconds
since 1970, lengths and offsets of text are UTF-16 code units, because a browser can compare those
with `text.length`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal

import orjson

LIVE_STATUSES: Final = frozenset({"queued", "in_progress"})
MESSAGE_OVERHEAD_BYTES: Final = 768  # about what a message's fields take beside its text
MAX_EVENT_CONTENT_BYTES: Final = 2048  # a message.* event leaves longer content out

_OPTIONAL_FIELDS: Final = (  # of a message, as the protocol's object has them
    "response_id",
    "usage",
    "timings",
    "model",
    "status_details",
    "settings",
    "restarts",
    "exactness",
    "reasoning",
    "tool_calls",
    "tool_outputs",
    "order",
    "redacted",
)

MessageStatus = Literal["in_progress", "completed", "interrupted", "failed"]


def utf16_length(text: str) -> int:
    """The number of UTF-16 code units of `text`: what JavaScript calls its length."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf16_prefix(text: str, length: int) -> str:
    """The first `length` UTF-16 code units of `text`."""
    return text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")


# What `Message.redacted` says is gone: its text, its thoughts, a call or an output by its place.
MESSAGE: Final = "message"
REASONING: Final = "reasoning"


def call_word(place: int) -> str:
    return f"call_{place}"


def output_word(place: int) -> str:
    return f"output_{place}"


class Unset(Enum):
    """The type of `UNSET`, which is not None: None is the root of a session's message tree."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

# ---- sessions and messages ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a session's event log; offsets under different epochs are not comparable."""

    epoch: str
    offset: int


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as Redis has it now."""

    id: str
    uid: str
    title: str
    model: str
    settings: dict[str, Any]
    revision: int
    created_at: int
    updated_at: int
    epoch: str
    offset: int
    head: str | None
    message_count: int
    input_tokens: int
    output_tokens: int
    active_response_id: str | None
    pinned: bool = False
    locked: bool = False
    revision_offset: int = 0  # of the event that made this revision
    hidden: bool = False  # in no list of its user's
    metadata: dict[str, str] = field(default_factory=dict)  # a client's own; only OpenAI's has it

    @property
    def is_at_revision(self) -> bool:
        """Whether nothing has happened since this revision, not even a message."""
        return self.offset == self.revision_offset

    @property
    def position(self) -> Position:
        """The newest entry of this session's log."""
        return Position(self.epoch, self.offset)

    def wire(self) -> dict[str, Any]:
        """The `session` object of the protocol. It does not say whose session it is."""
        return {
            "id": self.id,
            "title": self.title,
            "model": self.model,
            "settings": self.settings,
            "revision": self.revision,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "message_count": self.message_count,
            "head": self.head,
            "active_response_id": self.active_response_id,
            "pinned": self.pinned,
            "locked": self.locked,
            "usage": {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens},
        }


@dataclass(frozen=True, slots=True)
class Message:
    """One utterance, stored as the JSON of its protocol object.

    `sibling_ids` is filled in by `path`, in order of creation and with the message itself. It is
    never stored.
    """

    id: str
    parent_id: str | None
    role: Literal["user", "assistant", "tool", "system", "developer"]
    text: str
    status: MessageStatus
    created_at: int
    response_id: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    model: str | None = None
    status_details: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None  # that it was made with, without the system text
    restarts: int | None = None  # of its engine or worker, that it survived; None: of none
    exactness: str | None = None  # how it would have gone on at another engine; None: exactly
    reasoning: str | None = None  # what the model thought before it; None: nothing
    tool_calls: list[dict[str, Any]] | None = None  # items of the protocol; None: it called none
    tool_outputs: list[dict[str, Any]] | None = None  # what became of those that the server ran
    order: str | None = None  # of thoughts, words and calls; None: in this order, each once
    outputs: list[dict[str, str]] | None = None  # of a tool's message: `call_id`, `output`
    redacted: list[str] | None = None  # what a client has deleted of it; None: nothing
    sibling_ids: tuple[str, ...] = ()

    @staticmethod
    def of_outputs(
        message_id: str, parent_id: str | None, outputs: Sequence[Mapping[str, str]], at_ms: int
    ) -> Message:
        """What tools gave back, as one message; its text is all of it, one after the other."""
        text = "".join(each["output"] for each in outputs)
        stored = [{"call_id": each["call_id"], "output": each["output"]} for each in outputs]
        return Message(message_id, parent_id, "tool", text, "completed", at_ms, outputs=stored)

    @property
    def text_length(self) -> int:
        """In UTF-16 code units."""
        return utf16_length(self.text)

    def wire(self) -> dict[str, Any]:
        """The `message` object of the protocol, whole; absent fields are left out."""
        message: dict[str, Any] = {
            "id": self.id,
            "parent_id": self.parent_id,
            "role": self.role,
            "content": self.content,
            "status": self.status,
            "text_length": self.text_length,
            "created_at": self.created_at,
        }
        for name in _OPTIONAL_FIELDS:
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if len(self.sibling_ids) > 1:
            message["sibling_ids"] = list(self.sibling_ids)
        return message

    @property
    def content(self) -> list[dict[str, str]]:
        """Its parts; each output of a tool is one."""
        if self.outputs is None:
            return [{"type": "text", "text": self.text}]
        return [
            {"type": "text", "text": each["output"], "call_id": each["call_id"]}
            for each in self.outputs
        ]

    @property
    def wire_bytes(self) -> int:
        """About the length of its JSON, which escapes may make six times as long as its text.

        Its settings may have the form that was asked for, in tens of kilobytes.
        """
        call_ids = [each["call_id"] for each in self.outputs or ()]
        parts = [self.text, self.reasoning or "", self.settings, self.tool_calls or "", call_ids]
        parts.append(self.tool_outputs or "")
        return sum(len(orjson.dumps(each)) for each in parts) + MESSAGE_OVERHEAD_BYTES

    def event_wire(self) -> dict[str, Any]:
        """The `message` object inside a `message.*` event: content over 2 KiB is left out.

        The calls of tools and the form that was asked for count, and are left out as well.
        """
        message = self.wire()
        form = (self.settings or {}).get("output")
        num_bytes = len((self.text + (self.reasoning or "")).encode())
        for part in (self.tool_calls, self.tool_outputs, form):
            num_bytes += 0 if part is None else len(orjson.dumps(part))
        if num_bytes > MAX_EVENT_CONTENT_BYTES:
            del message["content"]
            message.pop("reasoning", None)
            message.pop("tool_calls", None)
            message.pop("tool_outputs", None)
            message["content_omitted"] = True
            if form is not None:
                message["settings"] = {**message["settings"]}
                del message["settings"]["output"]
        return message

    def with_parent(self, parent_id: str | None) -> Message:
        """The same message under another parent."""
        return self if parent_id == self.parent_id else replace(self, parent_id=parent_id)

    @staticmethod
    def from_wire(data: Mapping[str, Any], sibling_ids: tuple[str, ...] = ()) -> Message:
        """The message of a whole protocol object; unknown fields are ignored."""
        outputs = [
            {"call_id": part["call_id"], "output": part["text"]}
            for part in data["content"]
            if "call_id" in part
        ]
        return Message(
            id=data["id"],
            parent_id=data["parent_id"],
            role=data["role"],
            text="".join(part["text"] for part in data["content"]),
            status=data["status"],
            created_at=data["created_at"],
            sibling_ids=sibling_ids,
            outputs=outputs or None,
            **{name: data.get(name) for name in _OPTIONAL_FIELDS},
        )


# ---- runs and their events ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A response as Redis has it now; kept for ten minutes after its end.

    The fields without default are set when the response begins. `status` is `queued` or
    `in_progress` until `Runs.finish` writes the terminal one together with `reason`, `engine`
    and `done_at`.
    """

    response_id: str
    session_id: str
    uid: str
    status: str
    fence: int
    owner: str
    lease_until: int
    sequence_number: int
    message_id: str
    parent_id: str | None
    created_at: int
    model: str = ""
    settings: dict[str, Any] | None = None
    seed: int | None = None
    prompt_from: str | None = None  # first message of the history that fitted the context
    cancel: bool = False
    cancel_by: str = ""
    cancel_reason: str = ""
    seen_sequence_number: int | None = None
    cancel_at: int | None = None
    started_at: int | None = None  # first append with status in_progress
    first_token_at: int | None = None  # first append with token ids
    aborted_at: int | None = None
    done_at: int | None = None
    num_tokens: int = 0
    text_length: int = 0
    reason: str = ""
    engine: str = ""
    extra: dict[str, str] = field(default_factory=dict)  # other fields that the owner stored

    @property
    def is_live(self) -> bool:
        """Whether the run has not ended yet."""
        return self.status in LIVE_STATUSES


# ---- replies of the store -----------------------------------------------------------------------


# ---- live payloads ------------------------------------------------------------------------------
