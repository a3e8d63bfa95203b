"""What a session store can refuse, as one tree; each error carries the data that its handler needs.

SessionError
├── StoreUnavailable        Redis cannot be used now; nothing is known about what was asked
├── StoreRefused            this Redis must not be used at all (start-up checks)
├── InvalidId, InvalidCursor    refused before Redis was asked
├── SessionNotFound, MessageNotFound, ResponseNotFound, SessionLocked, RevisionConflict
├── MessageChanged, HeadMoved
├── UserNotFound, UserGone, ShareNotFound, GroupNotFound, TokenEnded
├── NoSlot                  one more answer than a user may have at once
├── QuotaExceeded           one more than a user may have; nothing was stored
├── ResponseInProgress, QueueFull, IdempotencyKeyReused     a response that may not begin
└── RunError                a run that may not be written by this caller
    ├── RunLost  RunEnded  RunGone  RunLive
    └── SequenceGap  CancelPending
"""

from __future__ import annotations


class SessionError(Exception):
    """Base of everything this package raises on purpose."""


class StoreUnavailable(SessionError):
    """Redis is down, silent, loading, read-only, full, or cannot write its disk.

    The call may or may not have been applied. Every method of the store may be repeated with the
    same arguments.
    """

    def __init__(self, message: str = "the session store is unavailable") -> None:
        super().__init__(message)


class StoreRefused(SessionError):
    """This Redis would lose or misread data; the one-line message says which setting is wrong."""


class EmbeddedRedisError(SessionError):
    """The redis-server child could not be found or started, in one line for the operator."""


class InvalidCursor(SessionError):
    """A page cursor that `SessionLists.page` never gave."""


class SessionNotFound(SessionError):
    """No such session, or it belongs to another user: callers cannot see which."""


class MessageNotFound(SessionError):
    """No such message in this session."""


class MessageChanged(SessionError):
    """The message is no longer the one that the caller has read."""


class HeadMoved(SessionError):
    """The session's newest message is no longer the one that the caller has read."""


class ResponseNotFound(SessionError):
    """No such response, somebody else's, or one that ended longer ago than its log is kept."""


class UserNotFound(SessionError):
    """No such user."""


class GroupNotFound(SessionError):
    """No such group of users."""


class UserGone(SessionError):
    """The caller's user was removed or disabled meanwhile; nothing of the call stays."""


class SessionLocked(SessionError):
    """The session takes no new responses."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"session is locked: {reason}")
        self.reason = reason


class ShareNotFound(SessionError):
    """No such share link, one that was taken back, or its session is gone."""


class NoSlot(SessionError):
    """The user, or their group, has `count` answers that run, which is as many as may."""

    def __init__(self, count: int, quota: str) -> None:
        super().__init__(f"{count} answers are running")
        self.count = count
        self.quota = quota


class QuotaExceeded(SessionError):
    """The user may have `limit` of `what` and no more; `retry_after_ms` if that will change.

    `quota` names which one of the quotas that is, for programs.
    """

    def __init__(
        self, what: str, limit: int, retry_after_ms: int | None = None, *, quota: str | None = None
    ) -> None:
        super().__init__(f"at most {limit:,} {what}")
        self.what = what
        self.limit = limit
        self.retry_after_ms = retry_after_ms
        self.quota = quota


class RevisionConflict(SessionError):
    """The session was changed since the caller read it; `revision` is the current one."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"session is at revision {revision}")
        self.revision = revision


class ResponseInProgress(SessionError):
    """The session has an active response and the caller did not ask to wait for it."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"{response_id} is in progress")
        self.response_id = response_id


class QueueFull(SessionError):
    """As many responses wait for the active one as may wait."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"the queue behind {response_id} is full")
        self.response_id = response_id


class ItemNotFound(SessionError):
    """Nothing of that id waits in the session: it was asked, or withdrawn."""


class QueueChanged(SessionError):
    """Somebody has changed the session's queue since the caller read it."""


class IdempotencyKeyReused(SessionError):
    """The key already names `response_id`, which was asked for with another body."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"idempotency key already names {response_id}")
        self.response_id = response_id


class TokenEnded(SessionError):
    """The token of the user whom this idempotency key has made was revoked, or has expired."""


class RunError(SessionError):
    """A run that this caller may not write, or not yet."""


class RunLost(RunError):
    """Another worker owns the run; the caller's fence is old. Stop sending its text to anybody."""

    def __init__(self, fence: int, owner: str) -> None:
        super().__init__(f"run belongs to {owner} under fence {fence}")
        self.fence = fence
        self.owner = owner


class RunEnded(RunError):
    """The run has its terminal entry; these are the stored facts of its end."""

    def __init__(
        self,
        status: str,
        reason: str = "",
        sequence_number: int = 0,
        engine: str = "",
        text_length: int = 0,
        fence: int = 0,
    ) -> None:
        super().__init__(f"run ended {status}: {reason}")
        self.status = status
        self.reason = reason
        self.sequence_number = sequence_number
        self.engine = engine
        self.text_length = text_length
        self.fence = fence


class RunGone(RunError):
    """The session was deleted, or Redis lost its data. Nothing was re-created."""


class RunLive(RunError):
    """The run's owner still holds its lease for `ms_left`, so nobody may take it over."""

    def __init__(self, ms_left: int, owner: str) -> None:
        super().__init__(f"{owner} holds the lease for {ms_left} ms")
        self.ms_left = ms_left
        self.owner = owner


class SequenceGap(RunError):
    """The log ends at `sequence_number`, so the caller's first number does not follow it.

    A smaller number than the caller thinks means that Redis went back in time; a larger one that
    stops short of the caller's last means that a shorter first try was applied. A repeat that was
    applied whole raises nothing. `num_tokens` token ids are stored with that log.
    """

    def __init__(self, sequence_number: int, num_tokens: int) -> None:
        super().__init__(f"the log ends at {sequence_number}")
        self.sequence_number = sequence_number
        self.num_tokens = num_tokens


class CancelPending(RunError):
    """The run may only end `cancelled`: a client was promised that.

    `seen` is the last sequence number that the stopping user had seen, None if unknown; the text
    is cut there.
    """

    def __init__(
        self, seen: int | None, by: str = "user", reason: str = "client_cancelled"
    ) -> None:
        super().__init__("a stop was stored before this end")
        self.seen = seen
        self.by = by
        self.reason = reason
