"""What the answers under `/v1/admin` hold; the OpenAPI document is made from it."""

from msgspec import UNSET, Struct, UnsetType

from server.config.models import ModelState
from server.protocol.objects import Count, Fraction, Milliseconds, SessionUsage


class UserName(Struct, frozen=True):
    """`name` is null for somebody who is gone."""

    id: str
    name: str | None


class LiveResponse(Struct, frozen=True):
    """The answer that a session is busy with."""

    id: str
    status: str
    replica: str
    fence: int
    tokens: int
    tokens_per_s: float | None
    age_ms: int


class ListedSession(Struct, frozen=True):
    """`title` is null without the scope for transcripts.

    `state`: idle, queued, in_progress or stopping.
    """

    id: str
    user: UserName
    title: str | None
    model: str
    state: str
    created_at: Milliseconds
    updated_at: Milliseconds
    message_count: int
    usage: SessionUsage
    locked: str | None
    viewers: int
    queued: int
    response: LiveResponse | None


class ListedSessions(Struct, frozen=True, omit_defaults=True):
    """`users`: whose name or id was looked for, if no session was. `examined`: how many sessions
    were looked at, where no index answers.
    """

    sessions: list[ListedSession]
    next_cursor: str | None
    users: list[UserName] | None = None
    examined: Count | None = None


class StopWish(Struct, frozen=True):
    by: str
    reason: str


class ResponseTimeline(Struct, frozen=True):
    """`timeline` names moments (`created_at`, …, `done_at`) by Redis' clock.

    Ten minutes after the end only what the stored message keeps is left.
    """

    id: str
    session_id: str
    message_id: str
    model: str | None
    status: str
    reason: str | None
    tokens: int | None
    text_length: int
    timeline: dict[str, Milliseconds]
    user: dict[str, str] | None = None
    engine: str | None = None
    replica: str | None = None
    fence: int | None = None
    sequence_number: int | None = None
    stop: StopWish | None = None


class SessionDetails(Struct, frozen=True):
    """`viewers` by worker; `responses`: those that are still kept, newest first."""

    session: ListedSession
    viewers: dict[str, int]
    responses: list[ResponseTimeline]


class StoppedResponse(Struct, frozen=True):
    id: str
    status: str
    reason: str | None


class StoppedResponses(Struct, frozen=True):
    responses: list[StoppedResponse]


class OwnQuotasObject(Struct, frozen=True):
    """Of one user; null: the server's setting holds, 0: no limit."""

    tokens_per_day: Count | None
    sessions: Count | None
    answers: Count | None


class UserObject(Struct, frozen=True):
    """`group`: whose quotas they share besides their own; null if they are in none."""

    id: str
    name: str
    roles: list[str]
    created_at: Milliseconds
    disabled: bool
    group: str | None
    quotas: OwnQuotasObject


class GroupName(Struct, frozen=True):
    id: str
    name: str


class UserPage(Struct, frozen=True):
    """`groups`: those that these users are in."""

    users: list[UserObject]
    groups: list[GroupName]
    next_cursor: str | None


class TokenObject(Struct, frozen=True):
    """`id` names the token in its revocation; the token itself is nowhere."""

    id: str
    kind: str
    scopes: list[str]
    created_at: Milliseconds
    expires_at: Milliseconds | None
    purpose: str


class UserDetails(UserObject, frozen=True, kw_only=True):
    tokens: list[TokenObject]


class NewUser(UserObject, frozen=True, kw_only=True):
    """`token` is shown this once. `namesakes` are others who have such a name already."""

    scopes: list[str]
    token: str
    namesakes: list[str]


class NewToken(Struct, frozen=True):
    user_id: str
    scopes: list[str]
    token: str
    expires_at: Milliseconds | None
    purpose: str


class Revoked(Struct, frozen=True):
    revoked: int


class ReplicaObject(Struct, frozen=True):
    """A worker, and the figures that it gives of itself beside these.

    `engine`: ok, stalled or unavailable, `engine_since` that moment.
    """

    id: str
    seen_at: Milliseconds
    version: str
    host: str
    pid: int
    draining: int
    connections: int
    active_responses: int
    engine: str
    engine_since: Milliseconds | None = None


class Replicas(Struct, frozen=True):
    """`now` is Redis' clock. `missing` fell silent, and nobody has proved that they are dead."""

    now: Milliseconds
    replicas: list[ReplicaObject]
    missing: list[ReplicaObject]


class Draining(Struct, frozen=True):
    id: str
    draining: bool


class AdapterObject(Struct, frozen=True, omit_defaults=True):
    """`problem` says why one that is loaded cannot be chosen at this worker."""

    name: str
    loaded: bool
    content_hash: str | UnsetType = UNSET
    loaded_at: Milliseconds | UnsetType = UNSET
    loaded_by: str | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class AdapterList(Struct, frozen=True):
    adapters: list[AdapterObject]


class Unloaded(Struct, frozen=True):
    name: str
    loaded: bool


class AuditEntryObject(Struct, frozen=True):
    """The names are those of now, null for what is gone or has none.

    `user`: whose session the target is, or who came into a group or left it.
    """

    id: str
    at: Milliseconds
    actor: str
    action: str
    target: str
    reason: str
    address: str
    actor_name: str | None = None
    target_name: str | None = None
    user: UserName | None = None


class AuditPage(Struct, frozen=True):
    entries: list[AuditEntryObject]
    next_cursor: str | None


class Stats(Struct, frozen=True):
    """`live` sums over the workers. Each series has one value for each moment of `at`, or null.

    `now`, `replicas` and `missing` are those of `/v1/admin/replicas`.
    """

    range: str
    at: list[Milliseconds]
    series: dict[str, list[float | None]]
    live: dict[str, int]
    now: Milliseconds
    replicas: list[ReplicaObject]
    missing: list[ReplicaObject]


class AdminModel(Struct, frozen=True, omit_defaults=True):
    """A model of this host; `needs_bytes` is foreseen, `memory_bytes` what it takes at most."""

    name: str
    default: bool
    state: ModelState
    progress: Fraction | None = None
    problem: str | None = None
    format: str | None = None
    context_length: Count | None = None
    size_bytes: Count | None = None
    needs_bytes: Count | None = None
    memory_bytes: Count | None = None


class AdminModelList(Struct, frozen=True):
    models: list[AdminModel]


class AdminEngine(Struct, frozen=True, omit_defaults=True):
    """One of several engines of a model, as this worker has it.

    `state`: `ready`, `connecting`, `stalled` or `dead`; `paused`, because it has failed too often
    of late; `preparing` or `failed` before it was ever joined; `not_loaded`, as its model is.
    `answers`, `sessions` and `moved` are this worker's, `running` and `waiting` those of all.
    `exactness` is a rung of the ladder in docs/engines.md: what its answers become when it dies.
    `incarnation` is another number when it has started again.
    """

    name: str
    model: str
    kind: str
    weight: float
    state: str
    draining: bool
    answers: Count
    sessions: Count
    moved: Count
    url: str | None = None
    problem: str | None = None
    running: Count | None = None
    waiting: Count | None = None
    kv_blocks: Count | None = None
    kv_blocks_free: Count | None = None
    exactness: str | None = None
    incarnation: int | None = None


class AdminEngineList(Struct, frozen=True):
    engines: list[AdminEngine]


class AskedEngine(Struct, frozen=True):
    """It is on its way; its state says how far."""

    name: str


class AskedModel(Struct, frozen=True):
    """It is on its way; its state says how far."""

    name: str
