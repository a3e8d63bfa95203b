"""The frames of `chat.v1`, outbound: the type of each, from which its JSON Schema is made.

What leaves the server is built as a dictionary, because most of it is stored as one. The tests hold
every frame that arrives at a client against these definitions, unknown fields included.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from server.protocol.client_frames import MAX_INTEGER, Settings
from server.protocol.errors import CODES

# `Unset` fields may be missing; those with None are there and say null.
Id = Annotated[str, Meta(pattern=r"^(ses|msg|conn)_[A-Za-z0-9_-]{22}$")]
ResponseId = Annotated[str, Meta(pattern=r"^resp_[A-Za-z0-9_-]{33}$")]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]

By = Literal["user", "admin", "policy", "store_lost"]
Reason = Literal[
    "eos",
    "stop",
    "client_cancelled",
    "admin_cancelled",
    "superseded",
    "no_viewers",
    "session_deleted",
    "max_output_tokens",
    "deadline",
    "quota",
    "server_shutdown",
    "owner_lost",
    "content_filter",
    "engine_error",
    "store_lost",
]


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a frame is made of."""


# ---- objects ------------------------------------------------------------------------------------


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


class SettingsObject(Settings, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings that are set; in a response, all that are in force."""


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
    type: Literal["text"]
    text: str


class Usage(Part, frozen=True, kw_only=True):
    input_tokens: Count
    cached_tokens: Count
    output_tokens: Count


class Timings(Part, frozen=True, kw_only=True):
    """Durations from the creation on, and moments by the store's clock, as far as they came."""

    total_ms: Milliseconds
    queue_ms: Milliseconds | UnsetType = UNSET
    ttft_ms: Milliseconds | UnsetType = UNSET
    tokens_per_s: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    created_at: Milliseconds | UnsetType = UNSET
    started_at: Milliseconds | UnsetType = UNSET
    first_token_at: Milliseconds | UnsetType = UNSET
    cancel_at: Milliseconds | UnsetType = UNSET
    aborted_at: Milliseconds | UnsetType = UNSET
    done_at: Milliseconds | UnsetType = UNSET


class StatusDetails(Part, frozen=True, kw_only=True):
    reason: Reason
    by: By | UnsetType = UNSET


class MessageObject(Part, frozen=True, kw_only=True):
    """One utterance. `content` is missing where `content_omitted` is true: read it over HTTP."""

    id: Id
    parent_id: Id | None
    role: Literal["user", "assistant"]
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
    status_details: StatusDetails | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    text_length: Count | UnsetType = UNSET


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


class RateLimit(Part, frozen=True, kw_only=True):
    name: Literal["messages", "responses", "tokens"]
    limit: Count
    remaining: Count
    reset_seconds: Annotated[float, Meta(ge=0)]


class ErrorObject(Part, frozen=True, kw_only=True):
    """`code` is for programs and never changes its meaning, `message` is for people."""

    # Computed, so that CODES is the only list; mypy knows written-out literals alone.
    type: Literal[tuple(sorted({kind for kind, _ in CODES.values()}))]  # type: ignore[valid-type]
    code: Literal[tuple(sorted(CODES))]  # type: ignore[valid-type]
    message: str
    param: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET
    retry_after_ms: Milliseconds | UnsetType = UNSET


# ---- frames -------------------------------------------------------------------------------------


class ServerFrame(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag=""
):
    """Anything that the server sends."""


class Reply(ServerFrame, frozen=True, kw_only=True, tag=""):
    """May answer a frame directly, and then carries its `event_id`."""

    event_id: str | UnsetType = UNSET


class SessionEntry(Reply, frozen=True, kw_only=True, tag=""):
    """An entry of a session's log."""

    session_id: Id
    offset: Number


class ResponseEntry(ServerFrame, frozen=True, kw_only=True, tag=""):
    """An entry of a response's log."""

    sequence_number: Number
    fence: Number


class ConnectionReady(ServerFrame, frozen=True, kw_only=True, tag="connection.ready"):
    """The first frame of every connection."""

    connection_id: Id
    replica: str
    protocol: Literal["chat.v1"]
    server_version: str
    user: UserInfo
    heartbeat: Heartbeat
    limits: ConnectionLimits
    resume_window_s: Count
    max_age_s: Count


class ConnectionDraining(ServerFrame, frozen=True, kw_only=True, tag="connection.draining"):
    """Reconnect after that time; a close 1012 follows."""

    reconnect_after_ms: Milliseconds


class ConnectionDegraded(ServerFrame, frozen=True, kw_only=True, tag="connection.degraded"):
    """What has stopped working."""

    store: Literal["unavailable"] | UnsetType = UNSET
    engine: Literal["unavailable", "stalled"] | UnsetType = UNSET


class ConnectionRestored(ServerFrame, frozen=True, kw_only=True, tag="connection.restored"):
    """What works again."""

    store: Literal["ok"] | UnsetType = UNSET
    engine: Literal["ok"] | UnsetType = UNSET


class SessionCreated(Reply, frozen=True, kw_only=True, tag="session.created"):
    """Answers `session.create`, and tells the user's other connections."""

    session: SessionObject
    epoch: str
    offset: Number
    replayed: bool


class SessionUpdated(SessionEntry, frozen=True, kw_only=True, tag="session.updated"):
    """The session as it is now."""

    session: SessionObject
    by: By


class SessionDeleted(SessionEntry, frozen=True, kw_only=True, tag="session.deleted"):
    """The session is gone, and its answers with it."""

    by: By
    reason: str | UnsetType = UNSET


class SessionEvicted(SessionEntry, frozen=True, kw_only=True, tag="session.evicted"):
    """An admin ends this connection; a close 4410 follows."""

    by: By
    reason: str | UnsetType = UNSET


class SessionSubscribed(Reply, frozen=True, kw_only=True, tag="session.subscribed"):
    """What was missed follows if `recovered`; otherwise `snapshot` replaces what is known."""

    session_id: Id
    epoch: str
    offset: Number
    recovered: bool
    active_responses: list[ResponseId]
    viewers: Count
    snapshot: Snapshot | UnsetType = UNSET


class SessionUnsubscribed(Reply, frozen=True, kw_only=True, tag="session.unsubscribed"):
    """No more frames of that session."""

    session_id: Id


class SessionActivity(ServerFrame, frozen=True, kw_only=True, tag="session.activity"):
    """For a dot in a list of sessions; `status` says how an answer ended."""

    session_id: Id
    active: bool
    status: str | UnsetType = UNSET


class MessageCreated(SessionEntry, frozen=True, kw_only=True, tag="message.created"):
    """A new message in the tree."""

    message: MessageObject


class MessageUpdated(SessionEntry, frozen=True, kw_only=True, tag="message.updated"):
    """A message goes on, or is finished."""

    message: MessageObject


class ResponseCreated(ResponseEntry, frozen=True, kw_only=True, tag="response.created"):
    """Entry 1 of every response."""

    response: ResponseObject
    idempotency_key: str
    replayed: bool
    event_id: str | UnsetType = UNSET


class ResponseQueued(ServerFrame, frozen=True, kw_only=True, tag="response.queued"):
    """What the response waits for, and how long that may last."""

    response_id: ResponseId
    reason: Literal["engine", "session", "engine_restart", "takeover"]
    position: Count
    ahead_tokens: Count | UnsetType = UNSET
    eta_ms: Milliseconds | UnsetType = UNSET


class ResponseInProgress(ResponseEntry, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has begun with the prompt."""

    response_id: ResponseId
    omitted_messages: Count
    prompt_tokens: Count
    cached_tokens: Count
    queue_ms: Milliseconds


class TextDelta(ResponseEntry, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """New text; covers the entries from `first_sequence_number` to `sequence_number`."""

    response_id: ResponseId
    first_sequence_number: Number | UnsetType = UNSET
    text_offset: Count
    delta: str
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ReasoningDelta(ResponseEntry, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """The same for text that a model writes before its answer."""

    response_id: ResponseId
    first_sequence_number: Number | UnsetType = UNSET
    text_offset: Count
    delta: str
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class TextSnapshot(ResponseEntry, frozen=True, kw_only=True, tag="response.output_text.snapshot"):
    """Replaces the text held; several parts are put together."""

    response_id: ResponseId
    text: str
    reasoning_text: str | UnsetType = UNSET
    part: Number
    parts: Number


class ResponseCancelling(Reply, frozen=True, kw_only=True, tag="response.cancelling"):
    """The stop was heard; with `durable` it can no longer be lost."""

    response_id: ResponseId | None
    idempotency_key: str | UnsetType = UNSET
    by: By
    confirmed: Literal[False]
    durable: bool
    owner: Literal["silent"] | UnsetType = UNSET
    lease_ends_in_ms: Milliseconds | UnsetType = UNSET


class ResponseDone(ResponseEntry, frozen=True, kw_only=True, tag="response.done"):
    """The one end of every response. `text`, where it is there, replaces the text held."""

    response: ResponseObject
    engine: Literal["released", "unknown"]
    durable: bool
    text: str | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET


class ViewerChanged(ServerFrame, frozen=True, kw_only=True, tag="viewer.changed"):
    """How many connections watch the session, on all workers."""

    session_id: Id
    viewers: Count


class RateLimitsUpdated(ServerFrame, frozen=True, kw_only=True, tag="rate_limits.updated"):
    """What is left of the limits that are set."""

    rate_limits: list[RateLimit]


class ErrorFrame(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """A refusal. It does not close the connection."""

    error: ErrorObject


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Answers `ping` with its `t`."""

    t: int
    server_time: Milliseconds


FRAMES: tuple[type[ServerFrame], ...] = (
    ConnectionReady,
    ConnectionDraining,
    ConnectionDegraded,
    ConnectionRestored,
    SessionCreated,
    SessionUpdated,
    SessionDeleted,
    SessionEvicted,
    SessionSubscribed,
    SessionUnsubscribed,
    SessionActivity,
    MessageCreated,
    MessageUpdated,
    ResponseCreated,
    ResponseQueued,
    ResponseInProgress,
    TextDelta,
    ReasoningDelta,
    TextSnapshot,
    ResponseCancelling,
    ResponseDone,
    ViewerChanged,
    RateLimitsUpdated,
    ErrorFrame,
    Pong,
)
TYPES: dict[str, type[ServerFrame]] = {str(kind.__struct_config__.tag): kind for kind in FRAMES}
