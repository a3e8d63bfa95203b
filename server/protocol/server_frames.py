"""The frames of `chat.v1`, outbound: the type of each, from which its JSON Schema is made.

What the server says first is built as one of these. Entries of a log are stored without their
numbers, as the `…Entry` of their frame, and get them when they are sent.
"""

from typing import Any, Literal, Self

from msgspec import UNSET, UnsetType

from server.protocol.encoding import Part, ServerFrame, of_stored
from server.protocol.errors import ApiError
from server.protocol.objects import (
    By,
    ConnectionLimits,
    Count,
    Decision,
    Engine,
    ErrorObject,
    Fraction,
    Heartbeat,
    Id,
    MessageObject,
    Milliseconds,
    NoticeObject,
    Number,
    OutputItem,
    QueueObject,
    Rate,
    RateLimit,
    ResponseId,
    ResponseObject,
    SessionObject,
    Snapshot,
    Steer,
    TokenLogprob,
    UserInfo,
)
from sessions.model.records import Session

PROTOCOL: Literal["chat.v1"] = "chat.v1"
QueueReason = Literal[
    "engine", "session", "engine_waking", "engine_restart", "takeover", "model_loading"
]


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


class NoticeUpdated(ServerFrame, frozen=True, kw_only=True, tag="notice.updated"):
    """What all users are to be shown; null: nothing any more."""

    notice: NoticeObject | None


class SessionCreated(Reply, frozen=True, kw_only=True, tag="session.created"):
    """Answers `session.create`, and tells the user's other connections."""

    session: SessionObject
    epoch: str
    offset: Number
    replayed: bool

    @classmethod
    def of(cls, session: Session, *, offset: int | None = None, replayed: bool = False) -> Self:
        """`offset` is that of the event, where others have followed it."""
        return cls(
            session=of_stored(SessionObject, session.wire()),
            epoch=session.epoch,
            offset=session.offset if offset is None else offset,
            replayed=replayed,
        )


class SessionUpdated(SessionEntry, frozen=True, kw_only=True, tag="session.updated"):
    """The session as it is now."""

    session: SessionObject
    by: By

    @classmethod
    def of(cls, session: Session, by: By, *, offset: int | None = None) -> Self:
        """`offset` is that of the event, where others have followed it."""
        return cls(
            session_id=session.id,
            session=of_stored(SessionObject, session.wire()),
            by=by,
            offset=session.offset if offset is None else offset,
        )


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
    queue: QueueObject | UnsetType = UNSET


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


class QueueUpdated(SessionEntry, frozen=True, kw_only=True, tag="queue.updated"):
    """What waits in the session, as it is now."""

    queue: QueueObject


InputStatus = Literal["waiting", "begun", "removed"]


class QueueAccepted(Reply, frozen=True, kw_only=True, tag="queue.accepted"):
    """Answers a `queue.*` frame: what has become of the item, a repeat's too."""

    session_id: Id
    item_id: Id | UnsetType = UNSET
    status: InputStatus
    response_id: ResponseId | UnsetType = UNSET


class SteerAccepted(Reply, frozen=True, kw_only=True, tag="response.steer.accepted"):
    """Answers `response.steer`: the words are kept, and will be asked."""

    steer: Steer
    status: InputStatus
    response_id: ResponseId | UnsetType = UNSET


class ConsentAccepted(Reply, frozen=True, kw_only=True, tag="tool_call.consent.accepted"):
    """Answers `tool_call.consent`: the word is kept, and counts."""

    response_id: ResponseId
    call_id: str
    decision: Decision


class CreatedEntry(ServerFrame, frozen=True, kw_only=True, tag="response.created"):
    """Entry 1 of every response."""

    response: ResponseObject
    idempotency_key: str


class ResponseCreated(CreatedEntry, frozen=True, kw_only=True, tag="response.created"):
    """Entry 1 of every response."""

    sequence_number: Number
    fence: Number
    replayed: bool
    event_id: str | UnsetType = UNSET


class ResponseQueued(ServerFrame, frozen=True, kw_only=True, tag="response.queued"):
    """What the response waits for, and how long that may last."""

    response_id: ResponseId
    reason: QueueReason
    position: Count
    ahead_tokens: Count | UnsetType = UNSET
    eta_ms: Milliseconds | UnsetType = UNSET
    progress: Fraction | UnsetType = UNSET  # of the model's loading


class ResponseProgress(ServerFrame, frozen=True, kw_only=True, tag="response.progress"):
    """How far an answer is that is being written: its tokens, and how many a second so far."""

    response_id: ResponseId
    output_tokens: Count
    tokens_per_s: Rate


class InProgressEntry(ServerFrame, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has begun with the prompt."""

    response_id: ResponseId
    omitted_messages: Count
    prompt_tokens: Count
    cached_tokens: Count
    queue_ms: Milliseconds


class ResponseInProgress(InProgressEntry, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has begun with the prompt."""

    sequence_number: Number
    fence: Number


class TextDelta(ResponseEntry, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """New text; covers the entries from `first_sequence_number` to `sequence_number`."""

    response_id: ResponseId
    first_sequence_number: Number | UnsetType = UNSET
    text_offset: Count
    delta: str
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ReasoningEntry(ServerFrame, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """New text of what the model thinks, as it is stored."""

    response_id: ResponseId
    text_offset: Count
    delta: str
    logprobs: list[Any] | UnsetType = UNSET  # of `TokenLogprob`, as objects


class ReasoningDelta(ResponseEntry, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """The same for text that a model writes before its answer."""

    response_id: ResponseId
    first_sequence_number: Number | UnsetType = UNSET
    text_offset: Count
    delta: str
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ToolPlace(Part, frozen=True, kw_only=True):
    """Where the tool process's memory was before a call was sent there."""

    epoch: str
    num_begun: int


class ItemAddedEntry(ServerFrame, frozen=True, kw_only=True, tag="response.output_item.added"):
    """A model has begun to call a tool, or the server with a call, as it is stored.

    `key` and `place` are of a call that is sent to the tool process after this is stored: the
    worker that takes the answer over asks there what became of it. Clients are not sent them.
    """

    response_id: ResponseId
    output_index: Count
    item: OutputItem
    key: str | UnsetType = UNSET
    place: ToolPlace | UnsetType = UNSET


class ItemDoneEntry(ServerFrame, frozen=True, kw_only=True, tag="response.output_item.done"):
    """That item as a whole, as it is stored."""

    response_id: ResponseId
    output_index: Count
    item: OutputItem


class ArgumentsEntry(
    ServerFrame, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of its arguments, as it is stored."""

    response_id: ResponseId
    output_index: Count
    item_id: str
    delta: str


class ArgumentsDoneEntry(
    ServerFrame, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """All of its arguments, as it is stored."""

    response_id: ResponseId
    output_index: Count
    item_id: str
    arguments: str


CallEntry = ItemAddedEntry | ItemDoneEntry | ArgumentsEntry | ArgumentsDoneEntry


class OutputItemAdded(ResponseEntry, frozen=True, kw_only=True, tag="response.output_item.added"):
    """A model has begun to call a tool, or the server has begun with a call."""

    response_id: ResponseId
    output_index: Count
    item: OutputItem


class OutputItemDone(ResponseEntry, frozen=True, kw_only=True, tag="response.output_item.done"):
    """That item as a whole."""

    response_id: ResponseId
    output_index: Count
    item: OutputItem


class ArgumentsDelta(
    ResponseEntry, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of the arguments of the call with that id."""

    response_id: ResponseId
    first_sequence_number: Number | UnsetType = UNSET
    output_index: Count
    item_id: str
    delta: str


class ArgumentsDone(
    ResponseEntry, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """All of its arguments."""

    response_id: ResponseId
    output_index: Count
    item_id: str
    arguments: str


class TextSnapshot(ResponseEntry, frozen=True, kw_only=True, tag="response.output_text.snapshot"):
    """Replaces the text held; several parts are put together."""

    response_id: ResponseId
    text: str
    reasoning_text: str | UnsetType = UNSET
    output: list[OutputItem] | UnsetType = UNSET
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


class DoneEntry(ServerFrame, frozen=True, kw_only=True, tag="response.done"):
    """The one end of every response."""

    response: ResponseObject
    engine: Engine
    durable: bool


class ResponseDone(DoneEntry, frozen=True, kw_only=True, tag="response.done"):
    """The one end of every response. `text`, where it is there, replaces the text held."""

    sequence_number: Number
    fence: Number
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

    @classmethod
    def of(cls, error: ApiError, event_id: str | None = None) -> Self:
        return cls(error=ErrorObject(**error.body(event_id)))


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Answers `ping` with its `t`."""

    t: int
    server_time: Milliseconds


FRAMES: tuple[type[ServerFrame], ...] = (
    ConnectionReady,
    ConnectionDraining,
    ConnectionDegraded,
    ConnectionRestored,
    NoticeUpdated,
    SessionCreated,
    SessionUpdated,
    SessionDeleted,
    SessionEvicted,
    SessionSubscribed,
    SessionUnsubscribed,
    SessionActivity,
    MessageCreated,
    MessageUpdated,
    QueueUpdated,
    QueueAccepted,
    SteerAccepted,
    ConsentAccepted,
    ResponseCreated,
    ResponseQueued,
    ResponseProgress,
    ResponseInProgress,
    TextDelta,
    ReasoningDelta,
    OutputItemAdded,
    OutputItemDone,
    ArgumentsDelta,
    ArgumentsDone,
    TextSnapshot,
    ResponseCancelling,
    ResponseDone,
    ViewerChanged,
    RateLimitsUpdated,
    ErrorFrame,
    Pong,
)
TYPES: dict[str, type[ServerFrame]] = {str(kind.__struct_config__.tag): kind for kind in FRAMES}
