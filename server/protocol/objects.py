"""The objects inside the frames of `chat.v1`, outbound: what a session, a message, a response is.

JSON Schemas are made of them, and HTTP answers with the same ones.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from server.protocol.client_frames import MAX_INTEGER, FunctionTool, McpTool, Settings
from server.protocol.encoding import Part
from server.protocol.errors import CODES

# `Unset` fields may be missing; those with None are there and say null.
Id = Annotated[str, Meta(pattern=r"^(ses|msg|conn|item)_[A-Za-z0-9_-]{22}$")]
ResponseId = Annotated[str, Meta(pattern=r"^resp_[A-Za-z0-9_-]{33}$")]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Rate = Annotated[float, Meta(ge=0)]  # per second

Engine = Literal["released", "unknown"]  # whether the engine has confirmed an end
Exactness = Literal["exact", "tokens", "text", "none"]  # if its engine dies: docs/engines.md
EndStatus = Literal["completed", "cancelled", "incomplete", "failed"]
By = Literal["user", "admin", "policy", "store_lost"]
Reason = Literal[
    "eos",
    "stop",
    "tool_calls",
    "client_cancelled",
    "admin_cancelled",
    "superseded",
    "steered",
    "no_viewers",
    "session_deleted",
    "max_output_tokens",
    "repetition",
    "deadline",
    "quota",
    "server_shutdown",
    "owner_lost",
    "engine_lost",
    "content_filter",
    "engine_error",
    "output_format_refused",
    "tools_not_supported",
    "thinking_not_supported",
    "model_unavailable",
    "store_lost",
]


class UserInfo(Part, frozen=True, kw_only=True):
    id: str
    name: str
    roles: list[str]


class Heartbeat(Part, frozen=True, kw_only=True):
    interval_ms: Milliseconds
    timeout_ms: Milliseconds


class ConnectionLimits(Part, frozen=True, kw_only=True):
    """0 means unlimited."""

    max_message_bytes: Count
    max_subscriptions: Count
    max_active_responses: Count
    messages_per_s: Count
    burst: Count


class SessionUsage(Part, frozen=True, kw_only=True):
    input_tokens: Count
    output_tokens: Count


Consent = Literal["always", "once", "never"]
Decision = Literal["allow", "allow_session", "deny"]


class OfferedTool(FunctionTool, tag="function", frozen=True):
    """A tool as a response offers it; one of `server_label` is run by the server itself."""

    server_label: str | UnsetType = UNSET
    consent: Consent | UnsetType = UNSET  # whether the user is asked before a call
    max_calls: Annotated[int, Meta(ge=1)] | UnsetType = UNSET  # of this server, for a question


class SettingsObject(Settings, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings that are set; in a response, all that are in force."""

    tools: list[OfferedTool | McpTool] | None = None  # type: ignore[assignment]  # more than given
    reasoning_effort: str | None = None  # these two of answers that another door has asked for
    truncation: Literal["auto", "disabled"] | None = None


class SessionObject(Part, frozen=True, kw_only=True):
    """A chat: settings and a tree of messages, of which `head` is the newest one in use."""

    id: Id
    title: str
    model: str
    settings: SettingsObject
    revision: Count
    created_at: Milliseconds
    updated_at: Milliseconds
    message_count: Count
    head: Id | None
    active_response_id: ResponseId | None
    pinned: bool
    locked: bool
    usage: SessionUsage


class TextPart(Part, frozen=True, kw_only=True):
    """With `call_id`, what the tool of that call gave back."""

    type: Literal["text"]
    text: str
    call_id: str | UnsetType = UNSET


class FunctionCall(Part, frozen=True, kw_only=True, tag="function_call"):
    """A model calls a tool; `arguments` is JSON if the call is `completed`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]


class FunctionCallOutput(Part, frozen=True, kw_only=True, tag="function_call_output"):
    """What became of the call of that `call_id`, which the server itself carries out.

    `output` is what the model reads of it; empty until then. A call that waits for the user's
    word has `consent` and `expires_at`; one without a result has the `code` that says why.
    """

    id: str
    call_id: str
    name: str
    server_label: str
    output: str
    status: Literal[
        "awaiting_consent",
        "in_progress",
        "completed",
        "failed",
        "denied",
        "cancelled",
        "unknown",
    ]
    code: str | UnsetType = UNSET
    consent: Consent | UnsetType = UNSET
    expires_at: Milliseconds | UnsetType = UNSET


OutputItem = FunctionCall | FunctionCallOutput


class Usage(Part, frozen=True, kw_only=True):
    input_tokens: Count
    cached_tokens: Count
    output_tokens: Count


class Timings(Part, frozen=True, kw_only=True):
    """Durations from the creation on, and moments by the store's clock, as far as they came."""

    total_ms: Milliseconds
    queue_ms: Milliseconds | UnsetType = UNSET
    ttft_ms: Milliseconds | UnsetType = UNSET
    tokens_per_s: Rate | UnsetType = UNSET
    created_at: Milliseconds | UnsetType = UNSET
    started_at: Milliseconds | UnsetType = UNSET
    first_token_at: Milliseconds | UnsetType = UNSET
    cancel_at: Milliseconds | UnsetType = UNSET
    aborted_at: Milliseconds | UnsetType = UNSET
    done_at: Milliseconds | UnsetType = UNSET


class StatusDetails(Part, frozen=True, kw_only=True):
    """`message` says to a person what is wrong with what was asked for."""

    reason: Reason
    by: By | UnsetType = UNSET
    message: str | UnsetType = UNSET


class MessageObject(Part, frozen=True, kw_only=True):
    """One utterance. `content` is missing where `content_omitted` is true: read it over HTTP."""

    id: Id
    parent_id: Id | None
    role: Literal["user", "assistant", "tool", "system", "developer"]
    content: list[TextPart] | UnsetType = UNSET
    content_omitted: Literal[True] | UnsetType = UNSET
    status: Literal["in_progress", "completed", "interrupted", "failed"]
    text_length: Count
    created_at: Milliseconds
    response_id: ResponseId | UnsetType = UNSET
    model: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    status_details: StatusDetails | UnsetType = UNSET
    settings: SettingsObject | UnsetType = UNSET
    restarts: Count | UnsetType = UNSET
    exactness: Exactness | UnsetType = UNSET  # missing: exact
    reasoning: str | UnsetType = UNSET
    tool_calls: list[FunctionCall] | UnsetType = UNSET
    tool_outputs: list[FunctionCallOutput] | UnsetType = UNSET
    order: str | UnsetType = UNSET
    redacted: list[str] | UnsetType = UNSET
    sibling_ids: list[Id] | UnsetType = UNSET


class ResponseObject(Part, frozen=True, kw_only=True):
    """One run. The fields that may be missing are there in `response.done`.

    In `response.created`, `text_length` is what a continued message has already.
    """

    id: ResponseId
    session_id: Id
    message_id: Id
    parent_id: Id
    model: str
    settings: SettingsObject
    status: Literal["queued", "in_progress", "completed", "cancelled", "incomplete", "failed"]
    created_at: Milliseconds
    priority: int | UnsetType = UNSET
    exactness: Exactness | UnsetType = UNSET
    status_details: StatusDetails | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    restarts: Count | UnsetType = UNSET
    text_length: Count | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET  # what its `output` says and nothing held it to


class Snapshot(Part, frozen=True, kw_only=True):
    """A session as it is now, with the newest messages on the way to its head."""

    session: SessionObject
    messages: list[MessageObject]
    has_more: bool


class TopLogprob(Part, frozen=True, kw_only=True):
    token: str
    logprob: float


class TokenLogprob(Part, frozen=True, kw_only=True):
    """One token of a delta; `top` has as many others as were asked for, the likeliest first."""

    token: str
    logprob: float
    top: list[TopLogprob]


class NoticeObject(Part, frozen=True, kw_only=True):
    """What an admin has to say to all users, in one line of text; `until` it is to be shown."""

    id: str
    level: Literal["info", "warning"]
    text: str
    until: Milliseconds
    created_at: Milliseconds


class RateLimit(Part, frozen=True, kw_only=True):
    name: Literal["messages", "responses", "tokens"]
    limit: Count
    remaining: Count
    reset_seconds: Annotated[float, Meta(ge=0)]


class QueueItemError(Part, frozen=True, kw_only=True):
    """Why it could not be asked; the rest of the queue waits until it is changed or withdrawn."""

    code: str
    message: str


class QueueItem(Part, frozen=True, kw_only=True):
    """Something to be asked. With `content_omitted`, a long text is missing.

    That is `input`, in whose place there is `beginning`, or `system` or `output` of the settings.
    """

    id: Id
    idempotency_key: str
    input: str | UnsetType = UNSET
    beginning: str | UnsetType = UNSET
    content_omitted: Literal[True] | UnsetType = UNSET
    settings: SettingsObject
    created_at: Milliseconds
    now: Literal[True] | UnsetType = UNSET
    steers: ResponseId | UnsetType = UNSET
    error: QueueItemError | UnsetType = UNSET


class QueueObject(Part, frozen=True, kw_only=True):
    """What waits in a session, in order. `revision` grows with each change."""

    revision: Count
    paused: bool
    items: list[QueueItem]


class Steer(Part, frozen=True, kw_only=True):
    """Words that end an answer, which goes on with them."""

    id: Id
    previous_response_id: ResponseId


class ErrorObject(Part, frozen=True, kw_only=True):
    """`code` is for programs and never changes its meaning, `message` is for people.

    `quota` names which one has refused, as `group.tokens_per_day`.
    """

    # Computed, so that CODES is the only list; mypy knows written-out literals alone.
    type: Literal[tuple(sorted({kind for kind, _ in CODES.values()}))]  # type: ignore[valid-type]
    code: Literal[tuple(sorted(CODES))]  # type: ignore[valid-type]
    message: str
    param: str | UnsetType = UNSET
    quota: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET
    retry_after_ms: Milliseconds | UnsetType = UNSET
